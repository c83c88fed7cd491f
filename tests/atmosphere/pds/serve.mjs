// A real PLC directory or a real PDS on loopback.
//
//   node serve.mjs plc PORT
//   node serve.mjs pds PORT FOLDER PLC_URL '{"PDS_BLOB_UPLOAD_LIMIT": "1000000"}'
//
// Prints one JSON line when it answers, and stops at SIGTERM. The PLC directory keeps its accounts in memory, so it is a
// process of its own: a PDS can be stopped and started again beside it.
import fs from 'node:fs'
import path from 'node:path'
import { createRequire } from 'node:module'

const require = createRequire(import.meta.url)
const [kind, port, ...rest] = process.argv.slice(2)

// Both would listen on every interface. The server's own `listen` is kept, since it also takes websockets.
const onLoopback = (app) => {
  const listen = app.listen
  app.listen = (at) => listen.call(app, at, '127.0.0.1')
}

const startPlc = async () => {
  const { Database, PlcServer } = require('@did-plc/server')
  const plc = PlcServer.create({ db: Database.mock(), port: Number(port) })
  onLoopback(plc.app)
  await plc.start()
  return plc
}

const startPds = async ([folder, plcUrl, settings]) => {
  fs.mkdirSync(path.join(folder, 'blobs'), { recursive: true })
  Object.assign(process.env, {
    PDS_PORT: port,
    PDS_HOSTNAME: 'localhost',
    PDS_DEV_MODE: 'true',
    PDS_DATA_DIRECTORY: folder,
    PDS_BLOBSTORE_DISK_LOCATION: path.join(folder, 'blobs'),
    PDS_BLOB_UPLOAD_LIMIT: String(100 * 1024 * 1024),
    PDS_DID_PLC_URL: plcUrl,
    PDS_SERVICE_HANDLE_DOMAINS: '.test',
    PDS_INVITE_REQUIRED: 'false',
    PDS_JWT_SECRET: 'a secret of the tests',
    PDS_ADMIN_PASSWORD: 'an admin of the tests',
    PDS_PLC_ROTATION_KEY_K256_PRIVATE_KEY_HEX: '5a'.repeat(32),
    PDS_DISABLE_SSRF_PROTECTION: 'true',
    PDS_RATE_LIMITS_ENABLED: 'false',
    LOG_ENABLED: 'false',
    ...JSON.parse(settings ?? '{}'),
  })
  const { PDS, readEnv, envToCfg, envToSecrets } = await import('@atproto/pds')
  const pds = await PDS.create(envToCfg(readEnv()), envToSecrets(readEnv()))
  onLoopback(pds.app)
  await pds.start()
  return pds
}

const server = await (kind === 'plc' ? startPlc() : startPds(rest))
const stop = async () => {
  await server.destroy()
  process.exit(0)
}
process.on('SIGTERM', stop)
process.stdin.on('end', () => process.exit(1)).resume() // whoever started it is gone
process.on('SIGINT', stop)
console.log(JSON.stringify({ kind, port: Number(port), pid: process.pid }))
