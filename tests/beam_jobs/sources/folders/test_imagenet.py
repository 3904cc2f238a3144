"""ImageNet's tars and folders, and the script that converts them.

One test counts in `Tars.open` how often the script opens a tar.
"""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from beam_jobs.references.labels import Labels
from beam_jobs.sources import SourceOptions
from beam_jobs.sources.input_files import InputFiles
from beam_jobs.sources.tars.tars import Tars
from tests.beam_jobs.images import encode, picture
from tests.beam_jobs.sources.inputs import jpeg, listed, listed_and_rejected, opened, tar_bytes, write_files
from tests.helpers.stores import serve_gs
from tpudata.cli import main
from tpudata.errors import BadRecordError, OutputError, SourceError, UsageError
from tpudata.format import Feature, open_dataset

SYNSETS = ("n01440764", "n01443537", "n02102040")
TRAIN = {synset: {f"{synset}_{j}.JPEG": jpeg(10 * i + j) for j in range(2 + i)} for i, synset in enumerate(SYNSETS)}
# As in ImageNet itself: one image of it is a PNG, and some are CMYK.
ODD = {"n01440764_90.JPEG": encode(picture(), "PNG"), "n01443537_91.JPEG": encode(Image.new("CMYK", (9, 6)), "JPEG")}
for _name, _data in ODD.items():
    TRAIN[_name.split("_")[0]][_name] = _data
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
    path = Path(__file__).parents[4] / "scripts" / "imagenet_to_gcs.py"
    spec = importlib.util.spec_from_file_location("imagenet_to_gcs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("layout", [folders, tars, sorted_out])
def test_lists_every_image_with_its_synset(tmp_path: Path, layout: type) -> None:
    source = opened(layout(tmp_path))
    assert source.labels == Labels(SYNSETS)
    assert source.features == (Feature("image/class/synset", "bytes", "string", encoding="utf8"),)
    found = {reference.key: (reference.split, reference.labels, reference.features) for reference in listed(source)}
    wanted = {name: ("train", synset) for synset, files in TRAIN.items() for name in files}
    wanted |= {name: ("validation", synset) for name, synset in zip(VALIDATION, VALIDATION_SYNSETS, strict=True)}
    assert found == {
        name: (split, (synset,), {"image/class/synset": synset}) for name, (split, synset) in wanted.items()
    }


@pytest.mark.parametrize("part", ["train", "validation"])
def test_reads_one_part_alone(tmp_path: Path, part: str) -> None:
    root = folders(tmp_path)
    (root / {"train": "validation", "validation": "train"}[part]).rename(tmp_path.parent / f"{tmp_path.name}-away")
    source = opened(root)
    assert {reference.split for reference in listed(source)} == {part}
    assert source.labels == Labels(SYNSETS)


def test_rejects_splits_and_unknown_synsets(tmp_path: Path) -> None:
    root = folders(tmp_path)
    with pytest.raises(UsageError, match=r"--split: .* is ImageNet"):
        opened(root, split="train=0.5,test=0.5")
    labels = root / "synset_labels.txt"
    labels.write_text("n01440764\nn99999999\n")
    with pytest.raises(SourceError, match=r"synset_labels\.txt line 2: rejected: unknown label: 'n99999999'"):
        opened(root)
    labels.write_text("".join(f"{synset}\n" for synset in VALIDATION_SYNSETS[:3]))
    with pytest.raises(SourceError, match=r"ILSVRC2012_val_00000004\.JPEG: rejected: .*synset_labels\.txt has 3 lines"):
        listed(opened(root))
    found, rejected = listed_and_rejected(opened(root))
    assert (len(found), len(rejected)) == (sum(map(len, TRAIN.values())) + 3, 1)
    labels.unlink()
    with pytest.raises(SourceError, match=r"no synset_labels\.txt or imagenet_2012_validation"):
        opened(root)


@pytest.mark.parametrize(
    ("text", "line", "content"),
    [
        ("n01440764\ntench\n", 2, "tench"),
        ("n01440764 tench, Tinca tinca\n", 1, "n01440764 tench, Tinca tinca"),
        ("n01440764\r\nn01440764 n01443537\r\n", 2, "n01440764 n01443537"),
        ("n01440764\n\nn01443537\n", 2, ""),
    ],
)
def test_names_the_line_of_the_synset_file_that_is_not_a_synset_alone(
    text: str, line: int, content: str, tmp_path: Path
) -> None:
    (folders(tmp_path) / "synset_labels.txt").write_text(text, newline="")
    with pytest.raises(
        SourceError, match=rf"synset_labels\.txt line {line}: not a synset \(got '{content}', expected "
    ):
        opened(tmp_path)


def test_the_synset_file_may_end_in_blank_lines_and_have_any_line_ends(tmp_path: Path) -> None:
    text = "\r\n".join([*(f" {synset}\t" for synset in VALIDATION_SYNSETS), "", " ", ""])
    (folders(tmp_path) / "synset_labels.txt").write_text(text, newline="")
    found = {
        reference.key: reference.labels for reference in listed(opened(tmp_path)) if reference.split == "validation"
    }
    assert found == {name: (synset,) for name, synset in zip(VALIDATION, VALIDATION_SYNSETS, strict=True)}


def test_treats_other_synset_folders_as_class_folders(tmp_path: Path) -> None:
    write_files(tmp_path, {"train/n01440764/images/0.JPEG": jpeg(0), "train/n01443537/1.JPEG": jpeg(1)})
    assert [reference.key for reference in listed(opened(tmp_path))] == [
        "train/n01440764/images/0.JPEG",
        "train/n01443537/1.JPEG",
    ]


def test_labels_file_sets_the_order_of_classes(tmp_path: Path) -> None:
    names = tmp_path / "names.txt"
    names.write_text("\n".join(reversed(SYNSETS)))
    source = opened(folders(tmp_path / "in"), SourceOptions(labels_file=str(names)))
    assert source.labels == Labels(SYNSETS[::-1])


@pytest.mark.parametrize(("offset", "flags"), [(1, []), (0, ["--label_offset=0"])])
def test_the_script_writes_the_same_features_from_folders_and_tars(
    tmp_path: Path, script: ModuleType, offset: int, flags: list[str]
) -> None:
    outputs = []
    for layout in (folders, tars):
        output = tmp_path / layout.__name__
        raw = layout(tmp_path / f"raw-{layout.__name__}")
        assert script.run([f"--raw_data_dir={raw}", f"--local_scratch_dir={output}", "--seed=3", *flags]) == 0
        outputs.append(output)
    dataset = open_dataset(str(outputs[0]))
    assert {name: split.records for name, split in dataset.manifest.splits.items()} == {"train": 11, "validation": 4}
    images = {name: data for files in TRAIN.values() for name, data in files.items()}
    for example in dataset.examples("train"):
        (name,) = example["image/filename"]
        assert isinstance(name, bytes)
        synset = name.decode().split("_")[0]
        (encoded,) = example["image/encoded"]
        assert (encoded == images[name.decode()]) == (name.decode() not in ODD)
        # The operations of tensorflow/tpu's readers, which take JPEG alone.
        height, width, channels = tf.image.extract_jpeg_shape(encoded).numpy()
        assert [[height], [width], [channels]] == [example[f"image/{key}"] for key in ("height", "width", "channels")]
        assert example["image/format"] == [b"JPEG"]
        crop = tf.image.decode_and_crop_jpeg(encoded, [1, 2, 3, 4], channels=3)
        assert crop.shape == (3, 4, 3)
        if name == b"n01440764_90.JPEG":
            assert np.abs(tf.io.decode_jpeg(encoded).numpy().astype(int) - picture()).max() < 25
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


def test_the_script_rejects_other_folders(tmp_path: Path, script: ModuleType) -> None:
    write_files(tmp_path, {"in/cat/0.jpg": jpeg(0)})
    with pytest.raises(UsageError, match="is not laid out as ImageNet"):
        script.run([f"--raw_data_dir={tmp_path}/in", f"--output={tmp_path}/out"])
    with pytest.raises(UsageError, match="--raw-data-dir"):
        script.run([f"--output={tmp_path}/out"])
    with pytest.raises(UsageError, match="unknown flag --outptu; did you mean --output"):
        script.run([f"--raw_data_dir={tmp_path}/in", "--output=x", "--outptu=y"])


def test_the_script_reads_the_source_once(tmp_path: Path, script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    found: Counter[str] = Counter()
    open_tars = Tars.open

    def counted(options: object, said: object, files: InputFiles) -> Tars:
        found.update(name for _, name in files)
        return open_tars(options, said, files)  # type: ignore[arg-type]

    monkeypatch.setattr(Tars, "open", counted)
    raw = tars(tmp_path / "raw")
    assert script.run([f"--raw_data_dir={raw}", f"--output={tmp_path}/out"]) == 0
    assert found == {"ILSVRC2012_img_train.tar": 1}


def test_the_script_has_the_flags_of_a_conversion(
    tmp_path: Path, script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    raw, output = folders(tmp_path / "raw"), tmp_path / "out"
    broken = raw / "train" / "n01440764" / "n01440764_0.JPEG"
    broken.write_bytes(broken.read_bytes()[:-9])
    argv = [f"--input={raw}", f"--local_scratch_dir={output}", "--num_shards=2"]
    with pytest.raises(BadRecordError, match=r"n01440764_0\.JPEG: rejected: JPEG cut"):
        script.run(argv)
    assert script.run([*argv, "--resume", "--on-bad-record=skip", "--max-bad-records=1", "--check=decode"]) == 0
    manifest = open_dataset(str(output)).manifest
    assert {name: len(split.shards) for name, split in manifest.splits.items()} == {"train": 2, "validation": 2}
    assert manifest.splits["train"].records == 10
    assert (output / "rejects").is_dir()
    with pytest.raises(OutputError, match="holds a dataset"):
        script.run(argv)
    write_files(raw / "train" / "n01440764", {f"n01440764_{i}.JPEG": jpeg(i) for i in (77, 78)})
    broken.unlink()
    appending = [*argv, "--append", "--check=decode"]
    capsys.readouterr()
    assert script.run([*appending, "--dry-run"]) == 0
    assert "2 files" in capsys.readouterr().out
    assert open_dataset(str(output)).manifest.records == 14
    assert script.run(appending) == 0
    assert "2 records added" in capsys.readouterr().out
    assert open_dataset(str(output)).manifest.records == 16
    with pytest.raises(UsageError, match=r"--split: .* is ImageNet"):
        script.run([*argv, "--split=train=0.5,test=0.5"])
    with pytest.raises(UsageError, match="--local-scratch-dir: not allowed with argument --gcs-output-path"):
        script.run([f"--input={raw}", "--gcs_output_path=gs://b/out", "--local_scratch_dir=x"])


def test_the_script_writes_to_gs(tmp_path: Path, script: ModuleType) -> None:
    raw = tars(tmp_path / "raw")
    assert script.run([f"--raw_data_dir={raw}", f"--output={tmp_path}/out"]) == 0
    local = {path.name: path.read_bytes() for path in (tmp_path / "out").glob("*.tfrecord")}
    with serve_gs(page=100) as store:
        objects = store.bucket("b")
        for path in raw.iterdir():
            store.put("b", f"in/{path.name}", path.read_bytes())
        assert script.run(["--raw_data_dir=gs://b/in", "--gcs_output_path=gs://b/out"]) == 0
        assert main(["verify", "gs://b/out"]) == 0
        assert main(["inspect", "gs://b/out"]) == 0
        assert open_dataset("gs://b/out").manifest.records == 15
        there = {name.removeprefix("out/"): item.data for name, item in objects.items() if name.startswith("out/")}
        assert {name: data for name, data in there.items() if name.endswith(".tfrecord")} == local
