"""Variables of v1-style code, found once and handed back to every trace.

v1 code makes its variables while it builds a graph. Here it is traced once in a scratch graph (`discover`), which
tells the variables that it makes and how they start. The real ones are made once, outside any graph. In each later
trace, inside a tf.function, `reuse` answers every request for a variable with the real one. A request is known by
the name that is asked for and by how often it was asked for before: graphs make names unique on their own account.
"""

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tpudata.estimator._errors import ModelFnValueError

Key = tuple[str, int]
_Keys = tf.compat.v1.GraphKeys
_LOCAL = (_Keys.LOCAL_VARIABLES, _Keys.METRIC_VARIABLES)
# A function's graph shares these lists with the graph around it, down to the one of the whole process; of every other
# collection it begins with a copy. The last two hold the state of get_variable and of variable_scope, under names that
# TensorFlow does not publish.
_SHARED_COLLECTIONS: tuple[Any, ...] = (
    _Keys.GLOBAL_VARIABLES,
    _Keys.LOCAL_VARIABLES,
    _Keys.TRAINABLE_VARIABLES,
    ("__variable_store",),
    ("__varscope",),
)


@dataclasses.dataclass(frozen=True)
class VariableInfo:
    """One variable that a function makes.

    Attributes:
        key: the requested name, and the how-many-eth request for it this is.
        name: its name in the graph, which is its name in a checkpoint.
        trainable: whether optimizers change it by default.
        collections: the graph collections that it belongs to.
        initial: name of the tensor in the scratch graph that holds its first value.
        synchronization, aggregation: how replicas keep it, as in `tf.Variable`.
    """

    key: Key
    name: str
    trainable: bool
    collections: tuple[Any, ...]
    initial: str
    synchronization: Any
    aggregation: Any

    @property
    def is_local(self) -> bool:
        """Whether it is state of one run (a metric's sums) that no checkpoint holds."""
        return any(collection in self.collections for collection in _LOCAL)


@dataclasses.dataclass(frozen=True)
class Blueprint:
    """What the scratch trace of a function found.

    Attributes:
        variables: in the order of creation.
        arguments: the placeholders that the function was called with.
        result: what the function returned; its tensors belong to the scratch graph.
        graph: the scratch graph.
    """

    variables: tuple[VariableInfo, ...]
    arguments: tuple[Any, ...]
    result: Any
    graph: Any

    def initial_values(self, variables: Sequence[VariableInfo]) -> dict[str, Any]:
        """Compute the first values of `variables`, by name. With a seeded graph they are the same at every call."""
        if not variables:
            return {}
        graph_def = self.graph.as_graph_def()
        names = [info.initial for info in variables]

        def compute() -> Any:
            return tf.import_graph_def(graph_def, return_elements=names, name="")

        # Importing the graph anew makes the random ops start again. Only what the values need is executed.
        with tf.device("CPU:0"):
            values = tf.compat.v1.wrap_function(compute, [])()
        return {info.name: value for info, value in zip(variables, values, strict=True)}


def discover(function: Callable[..., Any], specs: Sequence[Any], seed: int | None) -> Blueprint:
    """Trace `function` in a scratch graph.

    Args:
        function: takes an argument per entry of `specs`.
        specs: nested structures of `tf.TensorSpec`; None stays None.
        seed: the graph's seed, or None.

    Returns:
        Its variables and its result.
    """
    made: dict[Key, tuple[Any, Any]] = {}

    def record(key: Key, create: Callable[..., Any], kwargs: Mapping[str, Any]) -> Any:
        variable = create(**kwargs)
        collections = kwargs.get("collections")
        made[key] = (variable, (_Keys.GLOBAL_VARIABLES,) if collections is None else tuple(collections))
        return variable

    graph = tf.Graph()
    with graph.as_default():
        tf.compat.v1.set_random_seed(seed)
        arguments = tf.nest.map_structure(_placeholder, tuple(specs))
        with _creator(record):
            result = function(*arguments)
        trainable = {id(variable) for variable in graph.get_collection(_Keys.TRAINABLE_VARIABLES)}
        infos = tuple(
            VariableInfo(
                key=key,
                name=variable.op.name,
                trainable=id(variable) in trainable,
                collections=collections,
                initial=variable.initial_value.name,
                synchronization=variable.synchronization,
                aggregation=variable.aggregation,
            )
            for key, (variable, collections) in made.items()
        )
    return Blueprint(infos, arguments, result, graph)


def _placeholder(spec: Any) -> Any:
    return None if spec is None else tf.compat.v1.placeholder(spec.dtype, spec.shape, name="tpudata_input")


@contextlib.contextmanager
def reuse(variables: Mapping[Key, tuple[VariableInfo, Any]], seed: int | None) -> Iterator[None]:
    """Answer every request for a variable in this trace with one that exists.

    Args:
        variables: the infos and real variables by key.
        seed: seed of the graph's random ops, or None.
    """

    def answer(key: Key, create: Callable[..., Any], kwargs: Mapping[str, Any]) -> Any:
        del create, kwargs
        try:
            info, variable = variables[key]
        except KeyError:
            raise ModelFnValueError(
                f"model_fn made the variable {key[0]!r} (request {key[1]} of that name), which it did not make when it "
                "was first traced. It must make the same variables, in the same order, at every call."
            ) from None
        graph = tf.compat.v1.get_default_graph()
        members = [*info.collections, *([_Keys.TRAINABLE_VARIABLES] if info.trainable else [])]
        for collection in members:
            if not any(variable is other for other in graph.get_collection_ref(collection)):
                graph.add_to_collection(collection, variable)
        return variable

    graph = tf.compat.v1.get_default_graph()
    with _own_collections(graph), tf.compat.v1.name_scope(None), _creator(answer):
        if seed is not None:
            graph.seed = seed
        yield


@contextlib.contextmanager
def _creator(answer: Callable[[Key, Callable[..., Any], Mapping[str, Any]], Any]) -> Iterator[None]:
    requests: Counter[str] = Counter()

    def creator(create: Callable[..., Any], **kwargs: Any) -> Any:
        scope = tf.get_current_name_scope()
        name = kwargs.get("name") or "Variable"
        name = f"{scope}/{name}" if scope else name
        requests[name] += 1
        return answer((name, requests[name]), create, kwargs)

    with tf.variable_creator_scope(creator):
        yield


@contextlib.contextmanager
def _own_collections(graph: Any) -> Iterator[None]:
    """Give this trace empty collections, and the process its own back afterwards."""
    # What a program left outside, such as a global step that it made eagerly, is none of the model's.
    keys = [*_SHARED_COLLECTIONS, *(key for key in graph.get_all_collection_keys() if key not in _SHARED_COLLECTIONS)]
    references = [graph.get_collection_ref(key) for key in keys]
    saved = [list(reference) for reference in references]
    for reference in references:
        reference.clear()
    try:
        yield
    finally:
        for reference, content in zip(references, saved, strict=True):
            reference[:] = content
