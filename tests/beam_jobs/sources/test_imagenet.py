from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from beam_jobs.labels import Labels
from beam_jobs.sources import SourceOptions
from beam_jobs.sources.imagenet import ImageNet
from tests.beam_jobs.sources.inputs import jpeg, listed, listed_and_refused, opened, tar_bytes, write_files
from tpudata.errors import SourceError, UsageError
from tpudata.format import Feature, open_dataset

SYNSETS = ("n01440764", "n01443537", "n02102040")
TRAIN = {synset: {f"{synset}_{j}.JPEG": jpeg(10 * i + j) for j in range(2 + i)} for i, synset in enumerate(SYNSETS)}
VALIDATION = {f"ILSVRC2012_val_{i:08d}.JPEG": jpeg(100 + i) for i in range(1, 5)}
VALIDATION_SYNSETS = (SYNSETS[2], SYNSETS[0], SYNSETS[0], SYNSETS[1])


def folders(root: Path, labels: str = "synset_labels.txt") -> Path:
    write_files(
        root, {f"train/{synset}/{name}": data for synset, files in TRAIN.items() for name, data in files.items()}
    )
    write_files(root, {f"validation/{name}": data for name, data in VALIDATION.items()})
    (root / labels).write_text("".join(f"{synset}\n" for synset in VALIDATION_SYNSETS))
    return root


def tars(root: Path) -> Path:
    train = tar_bytes([(f"{synset}.tar", tar_bytes(files.items())) for synset, files in TRAIN.items()])
    labels = "\n".join(VALIDATION_SYNSETS).encode()
    return write_files(
        root,
        {
            "ILSVRC2012_img_train.tar": train,
            "ILSVRC2012_img_val.tar": tar_bytes(VALIDATION.items()),
            "imagenet_2012_validation_synset_labels.txt": labels,
        },
    )


def sorted_out(root: Path) -> Path:
    write_files(
        root, {f"train/{synset}/{name}": data for synset, files in TRAIN.items() for name, data in files.items()}
    )
    parts = zip(VALIDATION_SYNSETS, VALIDATION.items(), strict=True)
    return write_files(root, {f"val/{synset}/{name}": data for synset, (name, data) in parts})


@pytest.fixture(scope="module")
def script() -> ModuleType:
    path = Path(__file__).parents[3] / "scripts" / "imagenet_to_gcs.py"
    spec = importlib.util.spec_from_file_location("imagenet_to_gcs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("layout", [folders, tars, sorted_out])
def test_every_image_with_its_synset(tmp_path: Path, layout: type) -> None:
    source = opened(layout(tmp_path))
    assert isinstance(source, ImageNet)
    assert source.labels == Labels(SYNSETS)
    assert source.extra == (Feature("image/class/synset", "bytes", "string", encoding="utf8"),)
    found = {reference.key: (reference.split, reference.labels, reference.extra) for reference in listed(source)}
    wanted = {name: ("train", synset) for synset, files in TRAIN.items() for name in files}
    wanted |= {name: ("validation", synset) for name, synset in zip(VALIDATION, VALIDATION_SYNSETS, strict=True)}
    assert found == {
        name: (split, (synset,), f'{{"image/class/synset": "{synset}"}}') for name, (split, synset) in wanted.items()
    }


@pytest.mark.parametrize("part", ["train", "validation"])
def test_one_part_alone(tmp_path: Path, part: str) -> None:
    root = folders(tmp_path)
    (root / {"train": "validation", "validation": "train"}[part]).rename(tmp_path.parent / f"{tmp_path.name}-away")
    source = opened(root)
    assert isinstance(source, ImageNet)
    assert {reference.split for reference in listed(source)} == {part}
    assert source.labels == Labels(SYNSETS)


def test_what_does_not_fit(tmp_path: Path) -> None:
    root = folders(tmp_path)
    with pytest.raises(UsageError, match=r"--split: .* is ImageNet"):
        opened(root, split="train=0.5,test=0.5")
    labels = root / "synset_labels.txt"
    labels.write_text("n01440764\nn99999999\n")
    with pytest.raises(SourceError, match=r"synset_labels\.txt line 2: refused: unknown label 'n99999999'"):
        opened(root)
    labels.write_text("n01440764\ntench\n")
    with pytest.raises(SourceError, match=r"line 2: 'tench' is no synset"):
        opened(root)
    labels.write_text("".join(f"{synset}\n" for synset in VALIDATION_SYNSETS[:3]))
    with pytest.raises(SourceError, match=r"ILSVRC2012_val_00000004\.JPEG: refused: .*synset_labels\.txt has 3 lines"):
        listed(opened(root))
    found, refused = listed_and_refused(opened(root))
    assert (len(found), len(refused)) == (sum(map(len, TRAIN.values())) + 3, 1)
    labels.unlink()
    with pytest.raises(SourceError, match=r"no synset_labels\.txt or imagenet_2012_validation"):
        opened(root)


def test_folders_that_only_look_alike_are_class_folders(tmp_path: Path) -> None:
    write_files(tmp_path, {"train/n01440764/images/0.JPEG": jpeg(0), "train/n01443537/1.JPEG": jpeg(1)})
    assert [reference.key for reference in listed(opened(tmp_path))] == [
        "train/n01440764/images/0.JPEG",
        "train/n01443537/1.JPEG",
    ]


def test_a_labels_file_gives_the_order(tmp_path: Path) -> None:
    names = tmp_path / "names.txt"
    names.write_text("\n".join(reversed(SYNSETS)))
    source = opened(folders(tmp_path / "in"), SourceOptions(labels_file=str(names)))
    assert source.labels == Labels(SYNSETS[::-1])


@pytest.mark.parametrize(("offset", "flags"), [(1, []), (0, ["--label_offset=0"])])
def test_the_script_writes_the_nine_features(tmp_path: Path, script: ModuleType, offset: int, flags: list[str]) -> None:
    outputs = []
    for layout in (folders, tars):
        output = tmp_path / layout.__name__
        raw = layout(tmp_path / f"raw-{layout.__name__}")
        assert script.run([f"--raw_data_dir={raw}", f"--local_scratch_dir={output}", "--seed=3", *flags]) == 0
        outputs.append(output)
    dataset = open_dataset(str(outputs[0]))
    assert {name: split.records for name, split in dataset.manifest.splits.items()} == {"train": 9, "validation": 4}
    images = {name: data for files in TRAIN.values() for name, data in files.items()}
    for example in dataset.examples("train"):
        (name,) = example["image/filename"]
        assert isinstance(name, bytes)
        synset = name.decode().split("_")[0]
        assert example["image/encoded"] == [images[name.decode()]]
        assert example["image/class/label"] == [SYNSETS.index(synset) + offset]
        assert example["image/class/synset"] == [synset.encode()]
        assert set(example) == {
            *("image/encoded", "image/format", "image/height", "image/width", "image/colorspace", "image/channels"),
            *("image/class/label", "image/class/synset", "image/class/text", "image/filename"),
        }
    labels = {example["image/filename"][0]: example["image/class/label"] for example in dataset.examples("validation")}
    assert labels == {
        name.encode(): [SYNSETS.index(synset) + offset]
        for name, synset in zip(VALIDATION, VALIDATION_SYNSETS, strict=True)
    }
    # Tars and folders hold the same images, so they give the same shards.
    shards = [{path.name: path.read_bytes() for path in output.glob("*.tfrecord")} for output in outputs]
    assert shards[0] == shards[1]
    assert {name.split("-")[0] for name in shards[0]} == {"train", "validation"}


def test_the_script_refuses_other_folders(tmp_path: Path, script: ModuleType) -> None:
    write_files(tmp_path, {"in/cat/0.jpg": jpeg(0)})
    with pytest.raises(UsageError, match="is not laid out as ImageNet"):
        script.run([f"--raw_data_dir={tmp_path}/in", f"--output={tmp_path}/out"])
    with pytest.raises(UsageError, match="--raw-data-dir"):
        script.run([f"--output={tmp_path}/out"])
    with pytest.raises(UsageError, match="unknown flag --outptu; did you mean --output"):
        script.run([f"--raw_data_dir={tmp_path}/in", "--output=x", "--outptu=y"])
