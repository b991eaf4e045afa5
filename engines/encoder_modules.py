"""What the sentence-transformers files of a folder say: how tokens become one vector, and what goes before a text."""

from __future__ import annotations

import enum
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from mlxd.engines.errors import LoadError, LoadFailure

# Larger ones are none of these files.
_MOST_BYTES = 4_000_000
_FAMILY = "sentence_transformers."
_LENGTH_FILES = tuple(
    f"sentence_{family}_config.json"
    for family in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)


class Pooling(enum.StrEnum):
    """How the vectors of a text's tokens become one; the values are those of sentence-transformers, in its order."""

    CLS = "cls"
    MAX = "max"
    MEAN = "mean"
    MEAN_SQRT_LEN = "mean_sqrt_len"
    WEIGHTED_MEAN = "weightedmean"
    LAST = "lasttoken"


_MODES = {
    "pooling_mode_cls_token": Pooling.CLS,
    "pooling_mode_max_tokens": Pooling.MAX,
    "pooling_mode_mean_tokens": Pooling.MEAN,
    "pooling_mode_mean_sqrt_len_tokens": Pooling.MEAN_SQRT_LEN,
    "pooling_mode_weightedmean_tokens": Pooling.WEIGHTED_MEAN,
    "pooling_mode_lasttoken": Pooling.LAST,
}


@dataclass(frozen=True, slots=True)
class DenseLayer:
    """A linear layer behind the pooling, whose weights are in `folder`; `activation` is its function's own name."""

    folder: Path
    inputs: int
    outputs: int
    bias: bool
    activation: str


@dataclass(frozen=True, slots=True)
class SentenceModules:
    """The modules behind a transformer, in order, and what else the files say; None and empty where they do not.

    `pooling` has several ways for vectors that are put one behind the other. `pooled` is the size that the pooling
    expects of the transformer, and `pools_prompts` whether it takes in what goes before a text. `unit` is whether
    vectors get length 1 in the end. `listed` is False where no modules.json says all that.
    """

    pooling: tuple[Pooling, ...]
    pooled: int | None = None
    pools_prompts: bool = True
    dense: tuple[DenseLayer, ...] = ()
    unit: bool = False
    max_length: int | None = None
    lowers: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    listed: bool = True


def read_modules(folder: Path, otherwise: Pooling | None) -> SentenceModules:
    """Read the files; without a modules.json texts are pooled as `otherwise` says, to vectors of length 1. With None
    the model pools by itself, as a cross-encoder does, and only what is done to texts is read.

    Raises LoadError: for files that cannot be read, and for anything in them that would change the vectors and is not
    done here.
    """
    max_length, lowers = _transformer(folder)
    if otherwise is None:
        return SentenceModules((), max_length=max_length, lowers=lowers)
    if os.path.lexists(folder / "modules.json"):
        behind = _listed(folder)
    else:
        behind = SentenceModules((otherwise,), unit=True, listed=False)
    prompts, default = _prompts(folder)
    if any(prompts.values()) and not behind.pools_prompts:
        raise _unsupported(folder, "its pooling leaves prompts out (include_prompt is false)")
    return replace(behind, max_length=max_length, lowers=lowers, prompts=prompts, default_prompt=default)


def _listed(folder: Path) -> SentenceModules:
    modules = [_module(folder, entry) for entry in _entries(folder)]
    kinds = [kind for kind, _ in modules]
    # the order is fixed: whatever stands elsewhere would mean something else
    if kinds[:2] != ["Transformer", "Pooling"] or set(kinds[2:]) - {"Dense", "Normalize"}:
        known = "a Transformer, a Pooling, and Dense and Normalize after them, are known"
        raise _unsupported(folder, f"modules.json lists {', '.join(kinds)[:200]}; {known}")
    if "Normalize" in kinds[2:-1]:
        raise _unsupported(folder, "modules.json has a module behind Normalize")
    if modules[0][1] != folder:
        raise _unsupported(folder, "modules.json puts the transformer in a folder of its own")
    dense = tuple(_dense(place) for kind, place in modules[2:] if kind == "Dense")
    return replace(_pooling(modules[1][1]), dense=dense, unit=kinds[-1] == "Normalize")


def _entries(folder: Path) -> list[Any]:
    entries = _read(folder / "modules.json")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise _bad(folder / "modules.json", "expected a list of modules")
    return entries


def _module(folder: Path, entry: dict[str, Any]) -> tuple[str, Path]:
    kind, place = entry.get("type"), entry.get("path", "")
    if not isinstance(kind, str) or not isinstance(place, str):
        raise _bad(folder / "modules.json", "expected a type and a path, as text, of each module")
    parts = PurePosixPath(place).parts
    if ".." in parts or place.startswith("/") or "\0" in place:
        raise _bad(folder / "modules.json", "a path leads out of the model's folder")
    name = kind.rpartition(".")[2] if kind.startswith(_FAMILY) else kind
    return name, folder.joinpath(*parts)


def _pooling(place: Path) -> SentenceModules:
    file = place / "config.json"
    config = _object(file)
    wanted = config.get("pooling_mode")
    if wanted is None:
        wanted = [_MODES.get(key, key) for key, on in config.items() if key.startswith("pooling_mode_") and on]
    elif isinstance(wanted, str):
        wanted = [wanted]
    if not isinstance(wanted, list) or not wanted:
        raise _bad(file, "it names no pooling mode")
    odd = [mode for mode in wanted if mode not in list(Pooling)]
    if odd:
        raise _unsupported(place, f"pooling mode {str(odd[0])[:100]} is not known")
    size = config.get("word_embedding_dimension", config.get("embedding_dimension"))
    return SentenceModules(
        tuple(mode for mode in Pooling if mode in wanted),
        size if isinstance(size, int) else None,
        pools_prompts=config.get("include_prompt") is not False,
    )


def _dense(place: Path) -> DenseLayer:
    file = place / "config.json"
    config = _object(file)
    inputs, outputs, bias = config.get("in_features"), config.get("out_features"), config.get("bias", True)
    if not isinstance(inputs, int) or not isinstance(outputs, int) or inputs < 1 or outputs < 1:
        raise _bad(file, "expected in_features and out_features")
    activation = str(config.get("activation_function", "torch.nn.modules.activation.Tanh")).rpartition(".")[2]
    return DenseLayer(place, inputs, outputs, bias is not False, activation)


def _transformer(folder: Path) -> tuple[int | None, bool]:
    """The length that texts are cut to, and whether they are put in lower case."""
    for name in _LENGTH_FILES:
        if os.path.lexists(folder / name):
            config = _object(folder / name)
            length = config.get("max_seq_length")
            usable = isinstance(length, int) and not isinstance(length, bool) and length > 0
            return length if usable else None, config.get("do_lower_case") is True
    return None, False


def _prompts(folder: Path) -> tuple[dict[str, str], str | None]:
    file = folder / "config_sentence_transformers.json"
    if not os.path.lexists(file):
        return {}, None
    config = _object(file)
    prompts, default = config.get("prompts") or {}, config.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise _bad(file, "expected prompts as texts by name")
    if default is not None and (not isinstance(default, str) or default not in prompts):
        raise _bad(file, "default_prompt_name is none of its prompts")
    return prompts, default


def _object(file: Path) -> dict[str, Any]:
    value = _read(file)
    if not isinstance(value, dict):
        raise _bad(file, "expected a JSON object")
    return value


def _read(file: Path) -> Any:
    try:
        # opened without waiting: it may be a pipe
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as stream:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise _bad(file, "it is no regular file")
            text = stream.read(_MOST_BYTES + 1)
    except OSError as error:
        raise _bad(file, error.strerror or type(error).__name__) from error
    if len(text) > _MOST_BYTES:
        raise _bad(file, f"it has more than {_MOST_BYTES} bytes")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _bad(file, f"it is not valid JSON: {error}") from error


def _bad(file: Path, what: str) -> LoadError:
    return LoadError(LoadFailure.BAD_FILES, f"{file.parent.name}/{file.name}: {what}")


def _unsupported(folder: Path, what: str) -> LoadError:
    return LoadError(LoadFailure.UNSUPPORTED, f"{folder.name}: {what}")
