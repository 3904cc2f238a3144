"""The three things that an estimator does with a model."""


class ModeKeys:
    """Names of the modes, as model_fn and input_fn receive them in `mode`."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


MODES = (ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT)
