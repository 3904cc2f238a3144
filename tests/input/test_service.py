"""Servers without our code: a tf.data service, and hosts of one client."""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tpudata
from tests.helpers.datasets import Written, write_dataset
from tests.helpers.lists import write_lists
from tests.helpers.processes import wait_for
from tests.input.clusters import Server, cluster, read_bytes
from tests.input.test_workers import expected, finished, started
from tpudata import DataService, MixUp, Pad, Reading, ServiceError, TrainCrop, UsageError, make_input_fn
from tpudata.format import Feature

FOLDER = "digits"


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory, raw_digits: Written) -> Iterator[list[Server]]:
    """A dispatcher and two workers of a service, and two hosts; the digits are in their current folder."""
    folder = tmp_path_factory.mktemp("workers")
    (folder / FOLDER).symlink_to(raw_digits.path)
    with cluster(folder, ["dispatcher", "service worker", "service worker", "worker", "worker"]) as found:
        assert [server.ours for server in found] == [[]] * 5
        yield found


@pytest.fixture(scope="module")
def service(servers: list[Server]) -> list[Server]:
    """The dispatcher and the workers."""
    return servers[:3]


@pytest.fixture(scope="module")
def address(servers: list[Server]) -> str:
    return f"grpc://{servers[0].address}"


def taken(dataset: tf.data.Dataset, count: int | None = None) -> list[Any]:
    return list(itertools.islice(dataset.as_numpy_iterator(), count))


def check_same(found: list[Any], wanted: list[Any]) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        tf.nest.map_structure(np.testing.assert_array_equal, one, other)


@pytest.mark.parametrize(
    ("training", "workers"),
    [
        *((True, 3), (False, 2)),
        *(pytest.param(*case, marks=pytest.mark.matrix) for case in ((True, 1), (True, 2), (False, 1), (False, 3))),
    ],
)
def test_batches_equal_those_of_one_process(raw_digits: Written, address: str, workers: int, training: bool) -> None:
    options: Any = {"training": training, "seed": 5 if training else None}
    service = DataService(address, workers=workers)
    wanted = taken(make_input_fn(raw_digits.path, "test", **options)({"batch_size": 24}), 9)
    dataset = make_input_fn(raw_digits.path, "test", service=service, **options)({"batch_size": 24})
    assert len(wanted) == (9 if training else 5)
    check_same(taken(dataset, 9), wanted)
    if not training:
        # Each pass is a new one.
        assert len(dataset) == 5
        check_same(taken(dataset), wanted)


@pytest.mark.parametrize("training", [True, False])
def test_batches_of_pieces_equal_those_of_one_process(raw_digits: Written, address: str, training: bool) -> None:
    # Records of 117 bytes: a piece has two of them, and a batch takes its rows from four lanes.
    options: Any = {
        "training": training,
        "seed": 5,
        "shuffle": 48 if training else None,
        "reading": Reading(pieces=True, piece_bytes=300, lanes=8),
    }
    wanted = taken(make_input_fn(raw_digits.path, "train", **options)({"batch_size": 24}), 40)
    input_fn = make_input_fn(raw_digits.path, "train", service=DataService(address, workers=2), **options)
    check_same(taken(input_fn({"batch_size": 24}), 40), wanted)
    if training:
        check_same(taken(input_fn({"batch_size": 24}, start_step=31), 9), wanted[31:])


def test_lists_and_weights_equal_those_of_one_process(address: str, tmp_path: Path) -> None:
    lists = write_lists(tmp_path)
    pad = {"image/object/*": 7, "caption": Pad(3, cut=True), "ids": 7}
    for training in (True, False):
        options: Any = {"training": training, "seed": 5, "pad": pad, "weight": "number"}
        wanted = taken(make_input_fn(lists.path, "train", **options)({"batch_size": 6}), 7)
        input_fn = make_input_fn(lists.path, "train", service=DataService(address, workers=2), **options)
        check_same(taken(input_fn({"batch_size": 6}), 7), wanted)


def test_the_workers_read_the_files(
    service: list[Server], raw_digits: Written, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With a relative path, only the workers have the files.
    monkeypatch.chdir(Path(raw_digits.path).parent)
    (Path(raw_digits.path).parent / FOLDER).symlink_to(raw_digits.path)
    two_workers = DataService(address, workers=2)
    dataset = make_input_fn(FOLDER, "train", training=False, service=two_workers)({"batch_size": 50})
    alone = make_input_fn(FOLDER, "train", training=False)({"batch_size": 50})
    monkeypatch.chdir(tmp_path)
    with pytest.raises(tf.errors.NotFoundError):
        next(iter(alone))
    before = [server.read_bytes() for server in service]
    rows = np.concatenate([features["image"] for features, _ in taken(dataset)])
    np.testing.assert_array_equal(rows, np.stack(raw_digits.images["train"]))
    size = sum(path.stat().st_size for path in Path(raw_digits.path).glob("train-*"))
    dispatcher, *workers = (server.read_bytes() - count for server, count in zip(service, before, strict=True))
    assert dispatcher < size / 4
    assert all(count >= size / 4 for count in workers)
    assert read_bytes(service[1].pid) > 0


def test_hosts_of_one_client_read_the_files(servers: list[Server], raw_digits: Written) -> None:
    size = sum(path.stat().st_size for path in Path(raw_digits.path).glob("train-*"))
    hosts = servers[3:]
    before = [host.read_bytes() for host in hosts]
    with started("remote", raw_digits.path, *(host.address for host in hosts)) as process:
        found = finished(process)
    read = [host.read_bytes() - count for host, count in zip(hosts, before, strict=True)]
    for name in ("training", "evaluation"):
        assert found[name] == expected(raw_digits.path, training=name == "training")
        # The client reads the manifest and the indexes.
        assert found[f"{name} bytes"] < size
    # Each has half of the lanes in training, and half of the rows in evaluation.
    assert min(read) >= size


@pytest.mark.parametrize("workers", [4, *(pytest.param(count, marks=pytest.mark.matrix) for count in (1, 2))])
def test_a_host_with_two_replicas_gets_the_batches_of_one_process(
    raw_digits: Written, address: str, workers: int
) -> None:
    context = tf.distribute.InputContext(2, 1, 4)
    found, wanted = (
        taken(
            make_input_fn(raw_digits.path, "train", training=True, seed=2, service=service)(
                {"batch_size": 6}, context, start_step=7
            ),
            10,
        )
        for service in (DataService(address, workers=workers), None)
    )
    check_same(found, wanted)


def test_crops_mixing_and_transforms_equal_those_of_one_process(pictures: Written, address: str) -> None:
    def transform(features: Any, labels: Any, seed: Any) -> Any:
        image = features["image"] + tf.random.stateless_uniform([], seed)
        return {**features, "image": image}, labels

    def batch_transform(features: Any, labels: Any, seed: Any) -> Any:
        image = features["image"]
        return {**features, "image": image - tf.reduce_mean(image) + tf.random.stateless_uniform([], seed)}, labels

    found, wanted = (
        taken(
            make_input_fn(
                pictures.path,
                "train",
                training=True,
                seed=2,
                images=tpudata.Images(crop=TrainCrop(8), dtype="float32", mix=MixUp()),
                transform=transform,
                batch_transform=batch_transform,
                service=service,
            )({"batch_size": 16}),
            4,
        )
        for service in (DataService(address, workers=2, compress=True), None)
    )
    check_same(found, wanted)


def test_buckets_equal_those_of_one_process(address: str, tmp_path: Path) -> None:
    ids = Feature("input_ids", "int64", "int64", (None,))
    records = [{"input_ids": list(range(1 + number * 7 % 16))} for number in range(40)]
    path = write_dataset(str(tmp_path), {"train": records}, [ids], layout="tokens")
    found, wanted = (
        taken(
            make_input_fn(path, "train", training=True, seed=1, tokens=tpudata.Tokens(buckets=(8, 16)), service=chosen)(
                {"batch_size": 4}
            ),
            12,
        )
        for chosen in (DataService(address, workers=2), None)
    )
    check_same(found, wanted)


def test_a_mixture_equals_that_of_one_process(raw_digits: Written, address: str) -> None:
    def batches(service: DataService | None) -> Any:
        def made(split: str, **options: Any) -> Any:
            return make_input_fn(raw_digits.path, split, training=True, seed=4, service=service, **options)

        filtered = made("train", filter=lambda features: features["label"] < 5)
        mixture = tpudata.Mixture([(filtered, 2), (made("test", shuffle=False), 1)])
        return taken(mixture({"batch_size": 16}, start_step=2), 8)

    check_same(batches(DataService(address, workers=2)), batches(None))


def test_a_restarted_worker_raises_an_error(raw_digits: Written) -> None:
    service = tf.data.experimental.service
    dispatcher = service.DispatchServer(service.DispatcherConfig(worker_addresses=["localhost:%port%"]))
    place = dispatcher.target.partition("://")[2]
    first = service.WorkerServer(service.WorkerConfig(dispatcher_address=place, heartbeat_interval_ms=100))
    port = int(first._address.rpartition(":")[2])
    input_fn = make_input_fn(raw_digits.path, "train", training=True, seed=1, service=DataService(dispatcher.target))
    iterator = iter(input_fn({"batch_size": 4}))
    next(iterator)
    first._stop()
    second = service.WorkerServer(service.WorkerConfig(dispatcher_address=place, port=port, heartbeat_interval_ms=100))
    with pytest.raises(tf.errors.InvalidArgumentError, match="a worker restarted"):
        list(itertools.islice(iterator, 100))
    del iterator
    second._stop()
    dispatcher._stop()


@pytest.mark.parametrize(
    "options",
    [
        {"address": "localhost:5050"},
        {"address": "grpc://localhost"},
        {"address": None},
        {"workers": 0},
        {"workers": True},
        {"workers": 1.5},
        {"compress": "snappy"},
    ],
)
def test_rejects_unknown_options(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=rf"^DataService\.{next(iter(options))}: invalid value"):
        DataService(**{"address": "grpc://localhost:5050", **options})


def test_rejects_another_kind_of_service(raw_digits: Written) -> None:
    with pytest.raises(UsageError, match=r"^service="):
        make_input_fn(raw_digits.path, "train", training=True, service="grpc://localhost:5050")  # type: ignore[arg-type]


class Service:
    """A dispatcher of two workers in this process, which are started and ended one by one."""

    def __init__(self) -> None:
        self._module = tf.data.experimental.service
        self.dispatcher = self._module.DispatchServer(
            self._module.DispatcherConfig(worker_addresses=["localhost:%port%"] * 2)
        )
        self.workers: list[Any] = []

    def start_worker(self) -> None:
        place = self.dispatcher.target.partition("://")[2]
        config = self._module.WorkerConfig(dispatcher_address=place, heartbeat_interval_ms=100)
        self.workers.append(self._module.WorkerServer(config))
        wait_for(lambda: self.dispatcher._num_workers() == len(self.workers))

    def stop(self) -> None:
        for server in (*self.workers, self.dispatcher):
            server._stop()


@pytest.fixture
def own_service() -> Iterator[Service]:
    found = Service()
    yield found
    found.stop()


def test_waits_for_a_late_worker_and_names_it(
    own_service: Service, raw_digits: Written, caplog: pytest.LogCaptureFixture
) -> None:
    class WorkerStarter(logging.Handler):
        """Handler that starts the second worker when a warning names it."""

        def emit(self, _: logging.LogRecord) -> None:
            if len(own_service.workers) == 1:
                own_service.start_worker()

    own_service.start_worker()
    service = DataService(own_service.dispatcher.target, workers=2)
    starter = WorkerStarter(logging.WARNING)
    logging.getLogger("tpudata").addHandler(starter)
    try:
        with caplog.at_level("WARNING", "tpudata"):
            dataset = make_input_fn(raw_digits.path, "test", training=False, service=service)({"batch_size": 24})
    finally:
        logging.getLogger("tpudata").removeHandler(starter)
    check_same(taken(dataset), taken(make_input_fn(raw_digits.path, "test", training=False)({"batch_size": 24})))
    first, second = [record.message for record in caplog.records if "tf.data service" in record.message]
    assert re.search(
        r"worker [01] \(counted from 0\) of the 2 in the dispatcher's worker_addresses has not registered \(registered: local",
        first,
    )
    assert second.endswith("all workers have registered.")


def test_waiting_for_a_worker_ends_at_the_timeout(own_service: Service, raw_digits: Written) -> None:
    input_fn = make_input_fn(
        *(raw_digits.path, "test"),
        training=False,
        service=DataService(own_service.dispatcher.target, timeout_seconds=0.5),
    )
    with pytest.raises(ServiceError, match=r"no worker has registered, after 0\.5 s"):
        input_fn({"batch_size": 24})
    own_service.start_worker()
    with pytest.raises(ServiceError, match=r"worker [01] .* of the 2 .* has not registered .*, after 0\.5 s"):
        input_fn({"batch_size": 24})
    own_service.dispatcher._stop()
    with pytest.raises(ServiceError, match=r"the dispatcher does not answer, after 0\.5 s"):
        input_fn({"batch_size": 24})


@pytest.mark.parametrize("training", [False, pytest.param(True, marks=pytest.mark.matrix)])
def test_a_lost_worker_raises_an_error_within_the_timeout(
    training: bool, own_service: Service, raw_digits: Written
) -> None:
    for _ in range(2):
        own_service.start_worker()
    service = DataService(own_service.dispatcher.target, workers=2, timeout_seconds=5)
    input_fn = make_input_fn(raw_digits.path, "train", training=training, seed=1 if training else None, service=service)
    dataset = input_fn({"batch_size": 1})
    iterator = iter(dataset) if training else tpudata.as_numpy(dataset)
    kind = tf.errors.InvalidArgumentError if training else ServiceError
    next(iterator)
    own_service.workers[0]._stop()
    with pytest.raises(kind, match=r"tf\.data service at grpc.* gave no batch for 5 s .*start_step"):
        list(iterator)
    del iterator
