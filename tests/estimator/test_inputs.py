from typing import Any

import numpy as np
import pytest

from tpudata.estimator.inputs import numpy_input_fn


def batches(**arguments: Any) -> list[Any]:
    return list(numpy_input_fn(**arguments)().as_numpy_iterator())


def test_batches_cross_the_ends_of_epochs() -> None:
    found = batches(x=np.arange(5), y=np.arange(5) * 10, batch_size=4, num_epochs=2, shuffle=False)
    assert [x.tolist() for x, _ in found] == [[0, 1, 2, 3], [4, 0, 1, 2], [3, 4]]
    assert all((y == 10 * x).all() for x, y in found)


def test_accepts_dicts_and_features_without_labels() -> None:
    (features,) = batches(x={"a": np.ones([3, 2]), "b": np.zeros(3)}, shuffle=False)
    assert {name: value.shape for name, value in features.items()} == {"a": (3, 2), "b": (3,)}


def test_a_shuffle_keeps_rows_and_labels_together() -> None:
    found = batches(x=np.arange(100), y=np.arange(100) * 2, batch_size=30, num_epochs=1, shuffle=True)
    rows = np.concatenate([x for x, _ in found])
    assert sorted(rows) == list(range(100))
    assert rows.tolist() != list(range(100))
    assert np.array_equal(np.concatenate([y for _, y in found]), rows * 2)


def test_num_epochs_none_repeats_forever() -> None:
    endless = numpy_input_fn(np.arange(3), num_epochs=None, batch_size=2, shuffle=False)().take(4)
    assert [x.tolist() for x in endless.as_numpy_iterator()] == [[0, 1], [2, 0], [1, 2], [0, 1]]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"shuffle": None}, ValueError, r"shuffle=...\) must be True or False"),
        ({"y": np.arange(4)}, ValueError, "same number of rows"),
        ({"x": {}}, ValueError, "empty dict"),
        ({"x": np.zeros([0, 2])}, ValueError, "at least one"),
        ({"x": None}, TypeError, "got None"),
        ({"batch_size": 0}, ValueError, "batch_size"),
        ({"batch_size": 2.0}, TypeError, "batch_size"),
    ],
)
def test_rejects_wrong_arguments(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        numpy_input_fn(**{"x": np.arange(3), "shuffle": False, **arguments})
