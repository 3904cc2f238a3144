"""`tpudata report`: one page that needs no other file."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.helpers.datasets import encode_image, write_dataset, write_images
from tests.helpers.label_maps import png_of
from tests.helpers.objects import FEATURES as OBJECTS
from tests.helpers.objects import record_of
from tests.helpers.sequences import write_sequences
from tpudata import RecordSource, StorageError, convert_text
from tpudata.cli import main
from tpudata.format import Feature, open_dataset, write_metadata

VOID = {"meta", "img", "rect", "line"}


class Page(HTMLParser):
    """Checks that every tag is closed, and gathers texts, pictures and links."""

    def __init__(self, data: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.pictures: list[Image.Image] = []
        self.feed(data)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "img":
            kind, _, data = str(dict(attrs)["src"]).partition(",")
            assert kind == "data:image/png;base64"
            self.pictures.append(Image.open(io.BytesIO(base64.b64decode(data))))
        assert tag not in ("script", "link", "a")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del attrs
        assert tag in VOID

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return "\n".join(self.texts)


def report(folder: Path, *flags: str) -> Page:
    output = folder.parent / "report.html"
    assert main(["report", str(folder), f"--output={output}", *flags]) == 0
    data = output.read_text()
    assert not re.search(r"https?://|src=\"(?!data:)|url\(", data)
    return Page(data)


def images(folder: Path, layout: str, compression: str | None = None) -> Path:
    rng = np.random.default_rng(0)
    pixels = [rng.integers(0, 255, (6, 9, 3), np.uint8) for _ in range(7)]
    pixels[6] = pixels[5]
    path = folder / "d"
    write_images(
        str(path),
        {"train": pixels},
        {"train": [0, 1, 1, 1, 0, 1, 1]},
        shape=(6, 9, 3),
        layout=layout,
        shards=2,
        compression=compression,
    )
    return path


@pytest.mark.parametrize("layout", ["imagenet", "raw"])
@pytest.mark.parametrize("compression", [None, "gzip"])
def test_shows_pictures_duplicates_and_class_bars(layout: str, compression: str | None, tmp_path: Path) -> None:
    page = report(images(tmp_path, layout, compression))
    assert "From all 7 records" in page.text
    assert [picture.size for picture in page.pictures] == [(90, 60)] * 7  # enlarged, to be visible
    assert "1 duplicate" in page.text
    assert "All have 9 pixels." in page.text
    assert re.search(r"\n5\n(.|\n)*\n2\n", page.text)  # the bars of the classes


def test_samples_the_same_number_of_records_and_says_so(digits_dataset: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(digits_dataset, tmp_path / "d")
    page = report(folder, "--samples=50")
    assert page.text.count("From 50 of 200 records") == 1
    assert page.text.count("From 50 of 90 records") == 1
    first = (tmp_path / "report.html").read_bytes()
    report(folder, "--samples=50")
    assert (tmp_path / "report.html").read_bytes() == first


def test_escapes_texts(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("<b>bold</b> & more\n<script>alert(1)</script>\nplain\n")
    assert main(["convert", "text", f"--input={tmp_path}/in.txt", f"--output={tmp_path}/d"]) == 0
    page = report(tmp_path / "d")
    assert "<script>alert(1)</script>" in page.text
    assert "<b>bold</b> & more" in page.text


def test_shows_tokens_as_text(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("To be\nor not to be\n" * 20)
    flags = ["--tokenizer=bytes", "--sequence-length=16", "--pack"]
    assert main(["convert", "text", f"--input={tmp_path}/in.txt", f"--output={tmp_path}/d", *flags]) == 0
    page = report(tmp_path / "d")
    assert "or not to be" in page.text
    assert re.search(r"\d\d\.\d% of the token positions hold tokens, the rest padding", page.text)


def test_shows_a_dataset_whose_tokenizer_no_package_here_has(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("To be\nor not to be\n" * 20)
    flags = ["--tokenizer=bytes", "--sequence-length=16", "--pack"]
    assert main(["convert", "text", f"--input={tmp_path}/in.txt", f"--output={tmp_path}/d", *flags]) == 0
    manifest = tmp_path / "d" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"name": "bytes"', '"name": "acme"'))
    page = report(tmp_path / "d")
    assert "From all 30 records" in page.text
    assert "or not to be" not in page.text


def test_counts_tokens_of_an_unknown_tokenizer(tmp_path: Path) -> None:
    page = report(write_sequences(tmp_path / "d", {"train": 5}))
    assert "From all 5 records" in page.text
    assert "All have 16 tokens." in page.text


def test_lists_rejected_and_reencoded_inputs(tmp_path: Path) -> None:
    for number in range(4):
        path = tmp_path / "in" / "a" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("CMYK" if number == 1 else "RGB", (9, 9)).save(path)
    (tmp_path / "in" / "a" / "x.jpg").write_bytes(b"<no picture>")
    flags = ["--on-bad-record=skip", "--max-bad-records=1"]
    assert main(["convert", "images", f"--input={tmp_path}/in", f"--output={tmp_path}/d", *flags]) == 0
    page = report(tmp_path / "d")
    assert "HTML, SVG or other markup, not an image" in page.text
    assert "a/x.jpg" in page.text
    assert "CMYK" in page.text


def test_shows_a_dataset_in_a_folder_whose_name_is_not_utf8(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"\xff")
    (tmp_path / "a.txt").write_text("a line\n")
    convert_text(str(tmp_path / "a.txt"), str(folder))
    page = tmp_path / "page.html"
    assert main(["report", str(folder), f"--output={page}"]) == 0
    assert "\\udcff" in page.read_text()


def test_rejects_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 1
    assert "no manifest.json" in capsys.readouterr().err
    assert main(["report", str(tmp_path), f"--output={tmp_path}/manifest.json"]) == 2
    assert "manifest.json, expected a name that ends in .html)" in capsys.readouterr().err
    assert main(["report", str(tmp_path), "--samples=0"]) == 2
    assert "'0' is not a whole number of 1 or more" in capsys.readouterr().err


def test_counts_tokens_from_the_conversion(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("aab\n" * 10)
    assert main(["convert", "text", f"--input={tmp_path}/in.txt", f"--output={tmp_path}/d", "--tokenizer=bytes"]) == 0
    page = report(tmp_path / "d")
    assert "30 tokens with 2 different ids, of which 0 occur once." in page.text
    assert "97  'a'" in page.text
    assert "Counted by the conversion" in page.text


def test_finds_near_duplicates_of_pictures(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    base = Image.fromarray(rng.integers(0, 255, (12, 12, 3), np.uint8)).resize((120, 96), Image.Resampling.BICUBIC)
    others = [Image.fromarray(rng.integers(0, 255, (96, 120, 3), np.uint8)) for _ in range(3)]
    for number, picture in enumerate(
        [base, base.resize((240, 192)), *others, Image.new("RGB", (9, 9)), Image.new("RGB", (8, 8))]
    ):
        path = tmp_path / "in" / "a" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture.save(path)
    base.save(tmp_path / "in" / "a" / "same.jpg", quality=90)
    assert main(["convert", "images", f"--input={tmp_path}/in", f"--output={tmp_path}/d"]) == 0
    page = report(tmp_path / "d")
    # Resized, and encoded anew. Two blank pages have no outline in common.
    assert "2 near-duplicates: the outline of an earlier picture." in page.text
    assert "duplicate:" not in page.text


def test_pictures_that_share_their_upper_half_are_not_near_duplicates(tmp_path: Path) -> None:
    for number in range(2):
        # Large squares; the outlines of both pictures agree down to the middle.
        upper, lower = (np.random.default_rng(seed).integers(0, 255, (8, 17, 3), np.uint8) for seed in (9, number))
        path = tmp_path / "in" / "a" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.concatenate([upper, lower])).resize((170, 160), Image.Resampling.NEAREST).save(path)
    assert main(["convert", "images", f"--input={tmp_path}/in", f"--output={tmp_path}/d"]) == 0
    assert "near-duplicate" not in report(tmp_path / "d").text


def test_a_histogram_of_few_lengths_has_one_bar_each(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("a\nb\ncc\nddd\neee\nfff\n")
    assert main(["convert", "text", f"--input={tmp_path}/in.txt", f"--output={tmp_path}/d"]) == 0
    bars = re.findall(r"^(\d+) to (\d+) characters: (\d+)$", report(tmp_path / "d").text, re.M)
    assert bars == [("1", "2", "2"), ("2", "3", "1"), ("3", "4", "3")]


def test_finds_near_duplicates_of_texts(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("One line\none  LINE\nanother\nanother\n")
    assert main(["convert", "text", f"--input={tmp_path}/in.txt", f"--output={tmp_path}/d"]) == 0
    page = report(tmp_path / "d")
    assert "1 near-duplicate: an earlier text except for case and spaces." in page.text
    assert "1 duplicate: the same content as an earlier record of the split." in page.text


def test_finds_records_shared_by_two_splits(tmp_path: Path) -> None:
    pixels = [np.full((6, 9, 3), number * 20, np.uint8) for number in range(5)]
    write_images(
        str(tmp_path / "d"),
        {"train": pixels, "validation": pixels[3:]},
        {"train": [0] * 5, "validation": [0] * 2},
        shape=(6, 9, 3),
        shards=1,
    )
    assert "2 records with the same content as a record of split train." in report(tmp_path / "d").text


def test_groups_texts_by_class(tmp_path: Path) -> None:
    features = [Feature("text", "bytes", "string", encoding="utf8"), Feature("label", "int64", "int64", num_classes=2)]
    records = [{"text": f"text {number}", "label": number % 2} for number in range(9)]
    write_dataset(str(tmp_path / "d"), {"train": records}, features, layout="text", shards=3, classes=2)
    page = report(tmp_path / "d")
    text = page.text
    assert text.index("class 0\ntext 0\ntext 2\ntext 4") < text.index("class 1\ntext 1\ntext 3\ntext 5")


BROWSER = next(filter(shutil.which, ("chromium", "chromium-browser", "google-chrome")), None)


@pytest.mark.skipif(BROWSER is None, reason="Chromium is not installed")
def test_a_browser_shows_the_charts(tmp_path: Path) -> None:
    report(images(tmp_path, "imagenet"))
    shot = tmp_path / "shot.png"
    assert BROWSER is not None
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1000,1400"]
    page = f"file://{tmp_path}/report.html"
    subprocess.run([*command, f"--screenshot={shot}", page], check=True, capture_output=True, timeout=120)
    with Image.open(shot) as picture:
        colours = picture.convert("RGB").getcolors(1 << 24) or []
    # The bars of its charts.
    assert any(count > 500 and colour == (47, 126, 216) for count, colour in colours)


def test_lays_label_maps_in_colours_over_their_pictures(tmp_path: Path) -> None:
    classes = np.kron(np.array([[0, 1], [2, 255]]), np.ones((48, 48), int))
    picture = np.full((96, 96, 3), 90, np.uint8)
    label_map = Feature("map", "bytes", "uint8", (None, None, 1), "label_map")
    both = [Feature("image/encoded", "bytes", "uint8", (None, None, 3), "image"), label_map]
    record = {"image/encoded": encode_image(picture), "map": png_of(classes)}
    # The colours of PASCAL VOC's tools for these classes.
    colours = [(0, 0, 0), (128, 0, 0), (0, 128, 0), (224, 224, 192)]
    for number, features in enumerate((both, [label_map])):
        folder = tmp_path / str(number)
        records = [{feature.name: record[feature.name] for feature in features}]
        write_dataset(str(folder), {"train": records}, features, layout="examples", shards=1)
        *pictures, shown = report(folder).pictures
        assert shown.size == (96, 96)
        places = [(x, y) for y in (20, 70) for x in (20, 70)]
        assert [shown.convert("RGB").getpixel(place) for place in places] == colours
        assert [one.convert("RGB").getpixel((40, 40)) for one in pictures] == [(90, 90, 90)] * (features is both)
    write_dataset(str(tmp_path / "odd"), {"train": [{"map": b"GIF89a"}]}, [label_map], layout="examples", shards=1)
    assert report(tmp_path / "odd").pictures == []


def test_draws_boxes_with_their_classes_and_captions(tmp_path: Path) -> None:
    records = [
        record_of([(0.25, 0.5, 0.75, 1), (0, 0, 0.5, 0.25)], [1, 0], (96, 192), text=["<b>ear</b>", "tail"]),
        record_of([], [], (96, 192), caption=[]),
    ]
    folder = tmp_path / "d"
    write_dataset(str(folder), {"train": records}, OBJECTS, layout="imagenet", shards=1, classes=2)
    page = report(folder)
    data = (tmp_path / "report.html").read_text()
    # In pixels of the thumbnail, which is as large as the picture.
    found = re.findall(r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)" style', data)
    assert found == [("96.0", "24.0", "96.0", "48.0"), ("0.0", "0.0", "48.0", "48.0")]
    assert data.count('<svg viewBox="0 0 192 96" role="img">') == 1
    assert page.text.count("<b>ear</b>") == 4  # At the box and at the bar of its class, each with a tooltip.
    assert "another <caption>" in page.text
    assert "Classes of objects" in page.text
    assert "Objects a record" in page.text
    # Each picture and its map.
    assert [picture.size for picture in page.pictures] == [(192, 96)] * 4
    bad = [record_of([(0.5, 0, 0.25, 1)], [0])]
    write_dataset(str(tmp_path / "bad"), {"train": bad}, OBJECTS, layout="imagenet", shards=1, classes=2)
    assert "1 record that do not match the manifest" in report(tmp_path / "bad").text


def test_shows_both_sides_of_pairs(tmp_path: Path) -> None:
    rows = [{"en": f"see {number}", "de": f"sieh <{number}>"} for number in range(3)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pairs = ["--input", f"{tmp_path}/in.jsonl", "--inputs=en", "--targets=de"]
    lengths = ["--inputs-length=16", "--targets-length=24", "--pack", "--long-documents=cut"]
    for number, flags in enumerate(([], ["--tokenizer=bytes"], ["--tokenizer=bytes", *lengths])):
        folder = tmp_path / str(number)
        assert main(["convert", "text", *pairs, "--output", str(folder), *flags]) == 0
        page = report(folder)
        shown = "".join(page.texts)
        for row in rows:
            assert f"inputs: {row['en']}\ntargets: {row['de']}" in shown
        assert "Length of inputs" in page.text
        assert "Length of targets" in page.text
        assert ("———" in shown) == (lengths[0] in flags)


def test_marks_the_tokens_that_the_loss_counts(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(json.dumps({"q": "why?", "a": "so."}) + "\n")
    flags = ["--inputs=q", "--targets=a", "--tokenizer=bytes", "--sequence-length=24", "--pack", "--no-eos"]
    assert main(["convert", "text", f"--input={tmp_path}/in.jsonl", f"--output={tmp_path}/d", *flags]) == 0
    report(tmp_path / "d")
    assert "<pre>why?<mark>so.</mark></pre>" in (tmp_path / "report.html").read_text()


def test_shows_all_classes_of_a_text(tmp_path: Path) -> None:
    rows = [{"text": "plain", "tags": ["good", "<new>"]}, {"text": "simple", "tags": ["good"]}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert (
        main(["convert", "text", f"--input={tmp_path}/in.jsonl", f"--output={tmp_path}/d", "--label-field=tags"]) == 0
    )
    text = report(tmp_path / "d").text
    assert "good, <new>" in text or "<new>, good" in text


def test_shows_numbers_for_unnamed_labels(tmp_path: Path) -> None:
    features = [Feature("text", "bytes", "string", encoding="utf8"), Feature("label", "int64", "int64")]
    records = [{"text": f"text {number}", "label": 40 + number % 2} for number in range(4)]
    write_dataset(str(tmp_path / "d"), {"train": records}, features, layout="text", shards=1)
    assert "41\ntext 1\ntext 3" in report(tmp_path / "d").text


@pytest.mark.parametrize(
    ("feature", "value", "odd"),
    [
        (Feature("image/encoded", "bytes", "uint8", (None, None, 3), "image"), b"picture", {}),
        (Feature("image/encoded", "bytes", "uint8", (None, None, 3), "image"), b"picture", {"image/encoded": 5}),
        (Feature("image_raw", "bytes", "uint8", (1, 1, 3), "raw"), b"abc", {"image_raw": b"abcd"}),
        (Feature("input_ids", "bytes", "int32", (2,), "raw"), bytes(8), {}),
        (Feature("input_ids", "bytes", "int32", (2,), "raw"), bytes(8), {"input_ids": b"1"}),
        (Feature("text", "bytes", "string", (), "utf8"), b"text", {"text": 7}),
        (Feature("label", "int64", "int64", (), num_classes=2), 1, {"label": b"cat"}),
    ],
)
def test_counts_records_that_do_not_match_the_manifest(
    tmp_path: Path, feature: Feature, value: bytes | int, odd: dict[str, bytes | int]
) -> None:
    records = [{feature.name: value}] * 3 + [odd] * 2
    folder = write_dataset(str(tmp_path / "dataset"), {"train": records}, [feature], layout="examples", shards=1)
    assert "2 records that do not match the manifest" in report(Path(folder)).text


def test_accepts_records_without_a_list_of_ids(tmp_path: Path) -> None:
    features = [Feature("input_ids", "int64", "int64", (None,))]
    folder = write_dataset(
        str(tmp_path / "dataset"), {"train": [{"input_ids": [5, 6]}, {}]}, features, layout="tokens", shards=1
    )
    assert "do not match" not in report(Path(folder)).text


@pytest.mark.parametrize("packed", [True, False])
def test_shows_the_documents_of_a_row_apart(tmp_path: Path, packed: bool) -> None:
    ids, segments = np.array([5, 6, 9, 7, 9, 0], "<i4"), np.array([1, 1, 1, 2, 2, 0], "<i4")
    record = {"input_ids": ids.tobytes(), **({"segment_ids": segments.tobytes()} if packed else {})}
    features = [Feature(name, "bytes", "int32", (6,), "raw") for name in record]
    folder = write_dataset(str(tmp_path / "dataset"), {"train": [record]}, features, layout="packed", shards=1)
    manifest = dataclasses.replace(open_dataset(folder).manifest, options={"tokenizer": {"name": "other", "eos_id": 9}})
    write_metadata(folder, manifest)
    texts = report(Path(folder)).text
    assert "5 6 9\n———\n7 9" in texts
    assert ("7 9\n———\n0" in texts) == (not packed)


def test_reports_a_split_whose_records_are_all_in_quarantine(tmp_path: Path) -> None:
    splits = {"train": [{"n": 1}], "validation": [{"n": 2}]}
    folder = Path(
        write_dataset(str(tmp_path / "dataset"), splits, [Feature("n", "int64", "int64")], layout="", shards=1)
    )
    (folder / "validation-00000-of-00001.tfrecord").unlink()
    assert main(["verify", str(folder), "--quarantine"]) == 0
    text = report(folder).text
    assert "From all 1 record;" in text
    assert "From all 0 records;" in text


def test_skips_folders_and_hidden_files_next_to_the_lists_of_rejects(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_dataset(
        str(tmp_path / "dataset"), {"train": [{"n": 1}]}, [Feature("n", "int64", "int64")], layout="", shards=1
    )
    write_metadata(folder, dataclasses.replace(open_dataset(folder).manifest, rejected={"bad": 1}))
    rejects = Path(folder, "rejects")
    (rejects / "a folder").mkdir(parents=True)
    (rejects / ".DS_Store").write_bytes(b"\0\0\0\1Bud1")
    (rejects / "train-00000-of-00001.jsonl").write_text('{"source": "a.png", "offset": null, "reason": "bad"}\n')
    assert "a.png\nbad" in report(Path(folder)).text
    assert main(["verify", folder]) == 0
    capsys.readouterr()
    assert main(["inspect", folder, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rejects"] == [f"{rejects}/train-00000-of-00001.jsonl"]


def test_reports_a_damaged_list_of_rejects_and_a_pipe_for_a_shard(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_dataset(
        str(tmp_path / "dataset"), {"train": [{"n": 1}]}, [Feature("n", "int64", "int64")], layout="", shards=1
    )
    write_metadata(folder, dataclasses.replace(open_dataset(folder).manifest, rejected={"bad": 1}))
    rejects = Path(folder, "rejects", "train-00000-of-00001.jsonl")
    rejects.parent.mkdir()
    rejects.write_text('{"source": "x", "offset": null}\n')
    assert main(["report", folder, "--output", str(tmp_path / "report.html")]) == 1
    assert f"{rejects} at byte 0: the line is damaged" in capsys.readouterr().err
    shard = Path(folder, "train-00000-of-00001.tfrecord")
    shard.unlink()
    os.mkfifo(shard)
    for command in (
        ["report", folder, "--output", str(tmp_path / "report.html")],
        ["inspect", folder],
        ["verify", folder],
    ):
        assert main(command) == 1
        captured = capsys.readouterr()
        assert f"{shard}: neither a file nor a folder" in captured.err + captured.out
    with pytest.raises(StorageError, match="neither a file nor a folder"):
        RecordSource(folder, "train")[0]
