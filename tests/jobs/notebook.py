"""A notebook in the percent format, typed cell by cell into `python -i`, which shows what an expression is worth."""
# ruff: noqa: B018 - an expression is what a cell shows

# %%
import shoal

# %%
ds = shoal.Dataset("birds")
ds

# %%
len(ds)

# %%
ds[0]

# %%
ds[-1]["txt"], ds[[5, 3, 3]][1]["cls"], [s["cls"] for s in ds[10:13]]

# %%
ds.get("b0042")["json"]

# %%
ds.get("b042")

# %%
ds[999]

# %%
ds.head(2)[1]["__key__"]

# %%
[type(s["jpg"]).__name__ for s in ds.decode("pil").head(2)]

# %%
print(ds.describe())

# %%
large = ds.where("width >= 60 and species <> 'owl'")
large

# %%
len(large), large.keys()[:3]

# %%
ds.where("widht > 3")

# %%
ds.where("width >= '60'")

# %%
frame = large.to_pandas(["txt", "cls"])
frame.shape, list(frame.columns), int(frame.cls.sum())

# %%
frame.groupby("cls").size().to_dict()

# %%
ds.table(["json.width", "json.species"]).to_pandas().groupby("json.species")["json.width"].mean().round(6).to_dict()

# %%
ds.sql("select species, count(*) as n from ds where width < 50 group by 1 order by 1").to_pylist()

# %%
loader = ds.loader(batch_size=16, shuffle=True, seed=0)
loader

# %%
batch = next(iter(loader))
sorted(batch), len(batch["__key__"])

# %%
again = next(iter(loader))
again["__key__"] == batch["__key__"], loader.epoch


# %%
def brightness(sample):
    return {"key": sample["__key__"], "mean": float(sample["jpg"].mean())}


bright = ds.decode("rgb8", only="jpg").map(brightness)
round(bright[7]["mean"], 6)

# %%
round(sum(row["mean"] for row in bright), 6)

# %%
means = ds.decode("rgb8", only="jpg").map(brightness, num_parallel_calls="auto").batch(20)
round(sum(float(m) for b in means for m in b["mean"]), 6), len(means)

# %%
for sample in ds:
    if sample["cls"] == 2:
        break

# %%
sample["__key__"]

# %%
rare = ds.filter(lambda s: s["cls"] == 2)
rare

# %%
len(rare)

# %%
rare = rare.materialize()
len(rare), rare[0]["__key__"]

# %%
splits = ds.split(train=0.8, test=0.2)
splits.num_samples

# %%
len(set(splits["train"].keys()) & set(splits["test"].keys()))

# %%
parts = ds.train_test_split(test_size=0.25, seed=1)
parts.num_samples, len({*parts["train"].keys(), *parts["test"].keys()})

# %%
grown = ds.append([{"__key__": "b9999", "txt": "new", "cls": 3, "json": {"width": 1, "species": "owl"}}])
len(ds), len(grown), len(ds.refresh()), ds.refresh()[-1]["txt"]

# %%
int(ds.column("width").to_numpy().sum())

# %%
ds.fields, ds.column_names

# %%
sum(sum(batch["cls"]) for batch in loader), loader.epoch

# %%
[len(batch["cls"]) for batch in loader], loader.epoch
