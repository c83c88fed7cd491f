// Everything works without this script, by links and forms. With it: suggestions, keys, counts beside the samples.
"use strict";

const $ = (selector, inside = document) => inside.querySelector(selector);
const $$ = (selector, inside = document) => [...inside.querySelectorAll(selector)];
const fetchText = async (address, options) => {
  const answer = await fetch(address, { credentials: "same-origin", ...options });
  return { ok: answer.ok, text: await answer.text() };
};
// Only pages of this server come here, and it escapes all that is not its own; scripts in it would not run in any case.
const put = (element, html) => { element.innerHTML = html; };

// ------------------------------------------------------------------------------------------------------------ theme
const theme = () => {
  const dark = document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  const next = dark ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  try { localStorage.setItem("shoal-theme", next); } catch (_) { /* for this page only, then */ }
};
$("#theme")?.addEventListener("click", theme);
const keys = $("#keys");
$("#keys-button")?.addEventListener("click", () => keys.showModal());

// ----------------------------------------------------------------------------------------------------------- facets
const facets = $("#facets");
if (facets) {
  if (matchMedia("(max-width: 900px)").matches) facets.closest("details").open = false;
  const load = async () => {
    const answer = await fetchText(facets.dataset.src);
    put(facets, answer.ok ? answer.text : "<p class=quiet>The columns cannot be counted.</p>");
  };
  if (facets.dataset.wait === "click") {
    $("a", facets).addEventListener("click", (event) => { event.preventDefault(); load(); });
  } else load();
}

// ------------------------------------------------------------------------------------------------------ suggestions
const where = $("#where");
if (where) {
  const list = $("#suggestions");
  let found = [], start = 0, chosen = -1, asked = 0;
  const close = () => {
    list.hidden = true; found = []; chosen = -1; asked++;  // an answer that is still under way comes too late
    where.setAttribute("aria-expanded", "false"); where.removeAttribute("aria-activedescendant");
  };
  const choose = (at) => {
    chosen = at;
    $$("li", list).forEach((item, number) => item.setAttribute("aria-selected", String(number === at)));
    if (at >= 0) {
      where.setAttribute("aria-activedescendant", `suggestion-${at}`);
      $$("li", list)[at].scrollIntoView({ block: "nearest" });
    } else where.removeAttribute("aria-activedescendant");
  };
  const show = () => {
    list.replaceChildren(...found.map((one, at) => {
      const item = document.createElement("li");
      item.id = `suggestion-${at}`; item.setAttribute("role", "option"); item.setAttribute("aria-selected", "false");
      const text = document.createElement("span"), note = document.createElement("span");
      text.textContent = one.text.trim(); note.textContent = one.note;
      item.append(text, note);
      item.addEventListener("mousedown", (event) => { event.preventDefault(); take(at); });
      return item;
    }));
    list.hidden = found.length === 0;
    where.setAttribute("aria-expanded", String(found.length > 0));
    choose(-1);
  };
  const ask = async () => {
    const number = ++asked, at = where.selectionStart;
    const answer = await fetch(`/suggest?where=${encodeURIComponent(where.value)}&at=${at}`, { credentials: "same-origin" });
    const told = answer.ok ? await answer.json() : null;
    if (number !== asked || !told || document.activeElement !== where) return;  // after the last wait: more may be written by now
    ({ start, found } = told);
    show();
  };
  const take = (at) => {
    const end = where.selectionStart, text = found[at].text;
    where.value = where.value.slice(0, start) + text + where.value.slice(end).trimStart();
    const place = start + text.length;
    where.setSelectionRange(place, place); where.focus();
    close(); ask();
  };
  where.addEventListener("input", ask);
  where.addEventListener("click", () => { if (list.hidden) ask(); });
  where.addEventListener("blur", close);
  where.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { if (list.hidden) where.blur(); else { close(); event.stopPropagation(); } return; }
    if (event.key === "ArrowDown" && list.hidden) { ask(); event.preventDefault(); return; }
    if (list.hidden) return;
    if (event.key === "ArrowDown") { choose((chosen + 1) % found.length); event.preventDefault(); }
    else if (event.key === "ArrowUp") { choose((chosen + found.length) % (found.length + 1) - 1); event.preventDefault(); }
    else if (event.key === "Enter" && chosen >= 0) { take(chosen); event.preventDefault(); }
    else if (event.key === "Tab" && !event.shiftKey) { take(Math.max(chosen, 0)); event.preventDefault(); }
  });
  $("select.split")?.addEventListener("change", (event) => event.target.form.requestSubmit());
}

// ------------------------------------------------------------------------------------------- what opens when asked for
$$("details.peek").forEach((fold) => fold.addEventListener("toggle", async () => {
  if (!fold.open || fold.dataset.done) return;
  fold.dataset.done = "yes";
  $("pre", fold).textContent = (await fetchText(fold.dataset.src)).text || "empty";
}));
$$("details.draw").forEach((fold) => fold.addEventListener("toggle", () => {
  const image = $("img", fold);
  if (fold.open && !image.src) image.src = image.dataset.src;
}));
// A picture of a few pixels is drawn larger, each pixel as a square; a video that is seen shows its first picture.
const enlarge = (image) => { if (image.naturalWidth && image.naturalWidth < 160 && !image.classList.contains("pixels")) image.classList.add("tiny"); };
$$(".field .shown img, .pair img").forEach((image) => { if (image.complete) enlarge(image); image.addEventListener("load", () => enlarge(image)); });
const videos = $$("video[preload=none]");
if (videos.length) {
  const seen = new IntersectionObserver((entries) => entries.forEach(({ isIntersecting, target }) => {
    if (isIntersecting) { target.preload = "metadata"; seen.unobserve(target); }
  }));
  videos.forEach((video) => seen.observe(video));
}
$(".top nav a[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
$$("input.planes").forEach((slider) => slider.addEventListener("input", () => {
  const image = $("img", slider.closest(".array")), address = new URL(image.src);
  address.searchParams.set("plane", slider.value);
  image.src = address.href;
  $("output", slider.parentElement).textContent = slider.value;
}));
$$("form.verify").forEach((form) => form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const button = $("button", form);
  button.disabled = true; button.textContent = "Reading";
  const answer = await fetchText(form.action, { method: "POST" });
  const cell = form.closest("td");
  put(cell, answer.ok ? answer.text : "<p class=failure>It could not be verified.</p>");
}));

// ------------------------------------------------------------------------------------------------------------ build
const build = $("#build");
if (build) {
  const seen = [];
  const look = async () => {
    let answer = { ok: false };
    try { answer = await fetchText(build.dataset.src); } catch (_) { /* the viewer may have been stopped */ }
    if (answer.ok) {
      put(build, answer.text);
      const facts = build.firstElementChild.dataset;
      seen.push([performance.now(), Number(facts.samples)]);
      while (seen.length > 30) seen.shift();
      const [first, last] = [seen[0], seen.at(-1)];
      const rate = $("#rate", build);
      if (rate && last[0] - first[0] > 1500) {
        const speed = 1000 * (last[1] - first[1]) / (last[0] - first[0]), left = $("#left", build);
        rate.textContent = Math.round(speed).toLocaleString("en");
        const seconds = (Number(facts.planned) - last[1]) / speed;
        if (left && speed > 0 && seconds > 0) left.textContent = seconds < 90 ? `, ${Math.ceil(seconds)} s left` : `, ${Math.ceil(seconds / 60)} min left`;
      }
      if (facts.writing === "false") return;
    }
    setTimeout(look, 1000);
  };
  setTimeout(look, 1000);
}

// ------------------------------------------------------------------------------------------------------------- keys
const follow = (selector) => { const link = $(selector); if (link) link.click(); return Boolean(link); };
const across = () => {
  const cards = $$(".card");
  return Math.max(1, cards.findIndex((card) => card.offsetTop !== cards[0].offsetTop) === -1
    ? cards.length : cards.findIndex((card) => card.offsetTop !== cards[0].offsetTop));
};
const step = (count) => {
  const links = $$(".card .open");
  if (!links.length) return false;
  const now = links.indexOf(document.activeElement?.closest?.(".card")?.querySelector(".open"));
  const next = now < 0 ? 0 : Math.min(links.length - 1, Math.max(0, now + count));
  links[next].focus(); links[next].closest(".card").scrollIntoView({ block: "nearest" });
  return true;
};
const turn = (rel) => follow(`.walk a[rel=${rel}], .pager a[rel=${rel}]`);
const does = {
  "/": () => { if (!where) return false; where.focus(); where.select(); return true; },
  "?": () => { keys?.showModal(); return true; },
  j: () => step(1) || turn("next"), k: () => step(-1) || turn("prev"),
  ArrowRight: () => step(1) || turn("next"), ArrowLeft: () => step(-1) || turn("prev"),
  ArrowDown: () => $(".card .open:focus") && step(across()), ArrowUp: () => $(".card .open:focus") && step(-across()),
  n: () => turn("next"), p: () => turn("prev"),
  u: () => follow("#up"), r: () => follow("#shuffle"), t: () => { theme(); return true; },
  1: () => follow(".top nav a:nth-child(1)"), 2: () => follow(".top nav a:nth-child(2)"), 3: () => follow(".top nav a:nth-child(3)"),
  4: () => follow(".top nav a:nth-child(4)"), 5: () => follow(".top nav a:nth-child(5)"),
};
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || keys?.open) return;
  if (event.target.matches("input, select, textarea, audio, video, summary") && event.key !== "?") return;
  if (event.target.matches("input, select, textarea")) return;
  if (does[event.key]?.()) event.preventDefault();
});

document.documentElement.dataset.ready = "yes";
