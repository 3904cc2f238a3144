"""Chats, through the whole job, with the values of Hugging Face's `apply_chat_template`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
import tokenizers

from beam_jobs.text import run
from tests.beam_jobs.texts import convert, records
from tpudata.cli import main
from tpudata.errors import BadRecordError, OutputError, UsageError
from tpudata.format import open_dataset

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MARKED = (
    "{{ bos_token }}{% for message in messages %}{% if message.role == 'assistant' %}[A]{% generation %}"
    "{{ message.content }}{{ eos_token }}{% endgeneration %}{% elif message.role == 'tool' %}"
    "{{ raise_exception('tools are not for me') }}{% else %}[{{ message.role }}] {{ message.content | trim }}{% endif %}"
    "{% endfor %}"
)
CHATS = [
    [
        ("system", "Be kind."),
        ("user", "Who are you? é😀"),
        ("assistant", "A model 😀."),
        ("user", "ok"),
        ("assistant", "Bye"),
    ],
    [("user", "2+2?"), ("assistant", "4")],
]


def messages(chat: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in chat]


def write_rows(path: Path, rows: Iterable[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "a.jsonl", ({"messages": messages(chat)} for chat in CHATS))


@pytest.fixture
def template(tmp_path: Path) -> Path:
    path = tmp_path / "chatml.jinja"
    path.write_text(CHATML)
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A tokenizer of Hugging Face with a template that marks what is generated."""
    folder = tmp_path / "model"
    folder.mkdir()
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<s>", "</s>"], initial_alphabet=sorted(alphabet), show_progress=False
    )
    made.train_from_iterator([content for chat in CHATS for _, content in chat], trainer)
    made.save(str(folder / "tokenizer.json"))
    config = {"chat_template": MARKED, "bos_token": {"content": "<s>"}, "eos_token": "</s>", "model_max_length": 9}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder / "tokenizer.json"


def said(record: dict[str, Any], weight: int) -> list[int]:
    return [int(one) for one, has in zip(record["input_ids"], record["loss_weights"], strict=True) if has == weight]


def test_only_answers_have_weight(source: Path, template: Path, tmp_path: Path) -> None:
    flags = ["--chat=messages", "--tokenizer=bytes", f"--chat-template={template}", "--no-shuffle"]
    assert convert(source, tmp_path / "out", *flags) == 0
    for record, chat in zip(records(tmp_path / "out"), CHATS, strict=True):
        text = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in chat)
        assert bytes(map(int, record["input_ids"])).decode() == text
        answers = "".join(f"{content}<|im_end|>\n" for role, content in chat if role == "assistant")
        assert bytes(said(record, 1)).decode() == answers
    assert convert(source, tmp_path / "all", *flags, "--train-on-inputs") == 0
    assert all(set(record["loss_weights"]) == {1} for record in records(tmp_path / "all"))


def test_generation_blocks_have_weight(source: Path, model: Path, tmp_path: Path) -> None:
    assert convert(source, tmp_path / "out", "--chat=messages", f"--tokenizer=hf:{model}", "--no-shuffle") == 0
    tokenizer = tokenizers.Tokenizer.from_file(str(model))
    for record, chat in zip(records(tmp_path / "out"), CHATS, strict=True):
        parts = [f"[A]{content}</s>" if role == "assistant" else f"[{role}] {content}" for role, content in chat]
        assert list(record["input_ids"]) == tokenizer.encode("<s>" + "".join(parts), add_special_tokens=False).ids
        answers = "".join(f"{content}</s>" for role, content in chat if role == "assistant")
        assert tokenizer.decode(said(record, 1), skip_special_tokens=False) == answers


def test_packs_chats_whole(source: Path, template: Path, tmp_path: Path) -> None:
    flags = ["--chat=messages", "--tokenizer=bytes", f"--chat-template={template}", "--no-shuffle"]
    assert convert(source, tmp_path / "each", *flags) == 0
    assert convert(source, tmp_path / "out", *flags, "--sequence-length=400", "--pack") == 0
    (row,) = records(tmp_path / "out")
    for number, record in enumerate(records(tmp_path / "each"), 1):
        places = [at for at, segment in enumerate(row["segment_ids"]) if segment == number]
        assert [row["input_ids"][at] for at in places] == list(record["input_ids"])
        assert [row["loss_weights"][at] for at in places] == list(record["loss_weights"])
        assert [row["positions"][at] for at in places] == list(range(len(places)))


def test_every_form_gives_the_same_chats(source: Path, template: Path, tmp_path: Path) -> None:
    flags = [f"--chat-template={template}", "--tokenizer=bytes", "--no-shuffle"]
    assert convert(source, tmp_path / "out", "--chat=messages", *flags) == 0
    expected = [list(record["input_ids"]) for record in records(tmp_path / "out")]
    names = {"user": "human", "assistant": "gpt"}
    shared = [[{"from": names.get(role, role), "value": content} for role, content in chat] for chat in CHATS]
    write_rows(tmp_path / "share.jsonl", ({"id": 1, "conversations": chat} for chat in shared))
    (tmp_path / "share.json").write_text(json.dumps([{"conversations": chat} for chat in shared]))
    pq.write_table(pa.table({"conversations": shared}), tmp_path / "share.parquet")
    cells = [json.dumps(chat).replace('"', '""') for chat in shared]
    (tmp_path / "share.csv").write_text("conversations\n" + "".join(f'"{cell}"\n' for cell in cells))
    for name in ("share.jsonl", "share.json", "share.parquet", "share.csv"):
        assert convert(tmp_path / name, tmp_path / f"{name}.out", "--chat=conversations", *flags) == 0
        assert [list(record["input_ids"]) for record in records(tmp_path / f"{name}.out")] == expected


def test_reads_alpaca_rows_as_question_and_answer(template: Path, tmp_path: Path) -> None:
    rows = [
        {"instruction": "Add.", "input": "1, 2", "output": "3"},
        {"instruction": "Greet.", "input": "", "output": "Hello"},
    ]
    source = write_rows(tmp_path / "a.jsonl", rows)
    assert convert(source, tmp_path / "out", "--chat=instruction,input,output", "--no-shuffle") == 0
    assert [json.loads(record["messages"][0]) for record in records(tmp_path / "out")] == [
        messages([("user", "Add.\n\n1, 2"), ("assistant", "3")]),
        messages([("user", "Greet."), ("assistant", "Hello")]),
    ]


def test_reads_squad_rows_as_question_and_answer(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "a.jsonl", [{"context": "It rains.", "question": "What?", "answer": "Rain"}])
    assert convert(source, tmp_path / "out", "--chat=context,question,answer") == 0
    (record,) = records(tmp_path / "out")
    assert json.loads(record["messages"][0]) == messages([("user", "It rains.\n\nWhat?"), ("assistant", "Rain")])


@pytest.mark.parametrize(
    ("chat", "reason"),
    [
        ([], "the chat is empty"),
        (None, "the chat is empty"),
        ("hello", "field 'messages' is not JSON of a list of messages"),
        ([("bot", "hi")], r"unknown role: message 0 \(got \"bot\""),
        ([(["user"], "hi")], r"unknown role: message 0 \(got \[\"user\"\]"),
        ([("user", "hi")], "no message of the assistant"),
        ([("tool", "hi"), ("assistant", "hm")], "the chat template rejects it: tools are not for me"),
        ([("user", 3), ("assistant", "hm")], "message 0 has no text: 3"),
        ([("user", "\ufdd0"), ("assistant", "hm")], "which are not characters"),
    ],
)
def test_rejects_invalid_chats(chat: Any, reason: str, model: Path, tmp_path: Path) -> None:
    rows = [{"messages": messages(CHATS[1])}, {"messages": messages(chat) if isinstance(chat, list) else chat}]
    source = write_rows(tmp_path / "a.jsonl", rows)
    flags = ["--chat=messages", f"--tokenizer=hf:{model}"]
    with pytest.raises(BadRecordError, match=reason):
        convert(source, tmp_path / "out", *flags)
    skip = ["--on-bad-record=skip", "--max-bad-records=1", "--resume"]
    assert convert(source, tmp_path / "out", *flags, *skip) == 0
    assert len(list(records(tmp_path / "out"))) == 1


def test_stores_and_verifies_the_chat_template(source: Path, model: Path, tmp_path: Path) -> None:
    flags = ["--chat=messages", f"--tokenizer=hf:{model}"]
    assert convert(source, tmp_path / "out", *flags) == 0
    kept = tmp_path / "out" / "tokenizer_config.json"
    assert json.loads(kept.read_text()) == {"chat_template": MARKED, "bos_token": "<s>", "eos_token": "</s>"}
    with source.open("a") as file:
        file.write(json.dumps({"messages": messages(CHATS[0])}) + "\n")
    before = [list(record["input_ids"]) for record in records(tmp_path / "out")]
    assert run([f"--input={source}", f"--output={tmp_path}/out", "--append"]) == 0
    assert len(list(records(tmp_path / "out"))) == len(before) + 1
    assert main(["reshard", f"{tmp_path}/out", f"--output={tmp_path}/again", "--num-shards=1"]) == 0
    assert (tmp_path / "again" / "tokenizer_config.json").read_bytes() == kept.read_bytes()
    kept.write_text("{}")
    assert main(["verify", f"{tmp_path}/out"]) == 1


def test_append_rejects_another_template(source: Path, model: Path, template: Path, tmp_path: Path) -> None:
    flags = ["--chat=messages", f"--tokenizer=hf:{model}"]
    assert convert(source, tmp_path / "out", *flags) == 0
    with pytest.raises(OutputError, match="chat_template"):
        convert(source, tmp_path / "out", *flags, f"--chat-template={template}", "--append")


def test_templates_see_a_fixed_date(source: Path, tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text("{{ strftime_now('%d %b %Y') }}" + CHATML)
    flags = ["--chat=messages", "--tokenizer=bytes", f"--chat-template={tmp_path}/t.jinja"]
    assert convert(source, tmp_path / "out", *flags) == 0
    assert all(bytes(map(int, one["input_ids"])).startswith(b"26 Jul 2024") for one in records(tmp_path / "out"))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--chat=messages", "--tokenizer=bytes"], "no chat template"),
        (["--chat=messages", "--inputs=a", "--targets=b"], "exclude each other"),
        (["--chat=messages", "--targets-file=b.de"], "--targets-file and --chat exclude each other"),
        (["--chat=a,a"], "appears twice"),
        (["--chat=messages", "--form=lines"], "--chat"),
        (["--chat=messages", "--tokenizer=chars"], "chars has no vocabulary yet"),
        (["--tokenizer=bytes", "--chat-template=x"], "--chat-template requires --chat"),
        (["--chat-template=x"], "--chat-template requires --tokenizer"),
    ],
)
def test_rejects_flags_that_do_not_fit_chats(flags: list[str], words: str, source: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words):
        convert(source, tmp_path / "out", *flags)


@pytest.mark.parametrize("shown", ["hello", "{# {% generation %} #}{{ messages[1].content }}"])
def test_rejects_a_template_that_omits_the_answers(shown: str, source: Path, tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text(shown)
    with pytest.raises(BadRecordError, match="the template shows nothing that the assistant says"):
        convert(source, tmp_path / "out", "--chat=messages", "--tokenizer=bytes", f"--chat-template={tmp_path}/t.jinja")


def test_train_on_inputs_accepts_a_template_that_changes_earlier_messages(source: Path, tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text(
        "{{ messages | length }}{% for message in messages %}{{ message.content }}{% endfor %}"
    )
    flags = ["--chat=messages", "--tokenizer=bytes", f"--chat-template={tmp_path}/t.jinja"]
    with pytest.raises(BadRecordError, match="the template changes earlier messages"):
        convert(source, tmp_path / "out", *flags)
    assert convert(source, tmp_path / "all", *flags, "--train-on-inputs") == 0
    assert {bytes(map(int, one["input_ids"]))[:1] for one in records(tmp_path / "all")} == {b"5", b"2"}


def test_reads_parquet_chats_of_utf8_bytes(tmp_path: Path) -> None:
    kind = pa.list_(pa.struct([("role", pa.string()), ("content", pa.binary())]))
    chats = [
        [{"role": "user", "content": content}, {"role": "assistant", "content": b"hm"}]
        for content in ("é".encode(), b"a\xff")
    ]
    pq.write_table(pa.table({"messages": pa.array(chats, kind)}), tmp_path / "a.parquet")
    with pytest.raises(BadRecordError, match=r"not UTF-8: column 'messages'.* byte 0xff"):
        convert(tmp_path / "a.parquet", tmp_path / "out", "--chat=messages")
    flags = ["--chat=messages", "--invalid-utf8=replace", "--no-shuffle"]
    assert convert(tmp_path / "a.parquet", tmp_path / "replaced", *flags) == 0
    found = [json.loads(record["messages"][0])[0]["content"] for record in records(tmp_path / "replaced")]
    assert found == ["é", "a\ufffd"]


def test_rejects_an_invalid_template(source: Path, tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text("{% for %}")
    with pytest.raises(UsageError, match="--chat-template: not a template"):
        convert(source, tmp_path / "out", "--chat=messages", "--tokenizer=bytes", f"--chat-template={tmp_path}/t.jinja")


@pytest.mark.matrix
@pytest.mark.pipeline
def test_two_workers_write_the_same_bytes(source: Path, model: Path, tmp_path: Path) -> None:
    flags = ["--chat=messages", f"--tokenizer=hf:{model}", "--sequence-length=64", "--pack", "--num-shards=2"]
    for workers in (1, 2):
        assert convert(source, tmp_path / f"out{workers}", *flags, f"--workers={workers}") == 0
    found = [[path.read_bytes() for path in sorted((tmp_path / f"out{n}").glob("*.tfrecord"))] for n in (1, 2)]
    assert found[0] == found[1]
    assert open_dataset(str(tmp_path / "out1")).manifest.options["chat"] == "messages"
