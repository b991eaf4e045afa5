"""Loads an encoder's folder piece by piece on the calling thread: the model, what pools its states, the tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import structlog

from mlxd.engines.embedding_types import EncoderHead
from mlxd.engines.encoder_bert import BERT_TYPES, ROBERTA_TYPES, BertArgs, model_class
from mlxd.engines.encoder_causal import CAUSAL_TYPES, causal_classes, longest
from mlxd.engines.encoder_modules import Pooling, SentenceModules, read_modules
from mlxd.engines.encoder_tokenizer import EncoderTokenizer, NoFastTokenizer
from mlxd.engines.errors import LoadError, LoadFailure
from mlxd.engines.loader import build_model, evaluate_all, read_tokenizer
from mlxd.engines.sentence_head import SentenceHead
from mlxd.engines.types import EngineConfig, LoadProgress

log = structlog.stdlib.get_logger(__name__)

# What tokenizers without a length of their own say.
_NO_LENGTH = 10**9
_PAIRS = "ForSequenceClassification"
_TEXTS = ("Model", "ForMaskedLM", "ForPreTraining", "LMHeadModel", "ForCausalLM", "ForTextEncoding")


@dataclass(frozen=True, slots=True, eq=False)
class LoadedEncoder:
    """A model with its weights evaluated. `sentence` makes vectors of its states; a cross-encoder has none.

    `max_length` counts tokens, `attention_heads` is 0 when unknown.
    """

    model: Any
    sentence: SentenceHead | None
    tokenizer: EncoderTokenizer
    modules: SentenceModules
    max_length: int
    vocab_size: int
    weight_bytes: int
    attention_heads: int

    @property
    def head(self) -> EncoderHead:
        return EncoderHead.SCORES if self.sentence is None else EncoderHead.EMBEDS


def load_encoder(
    config: EngineConfig, progress: Callable[[LoadProgress], None], cancelled: Callable[[], bool]
) -> LoadedEncoder:
    """Load and evaluate a model that makes embeddings or scores. Raises LoadError with the reason."""
    path = config.path
    if config.adapter is not None:
        raise _unsupported(f"adapter {config.adapter}: adapters are for models that generate text")
    model, description = build_model(path, get_model_classes=_classes)
    # see load_text_model
    mx.eval(mx.random.state)
    modules = read_modules(path, _usual_pooling(description))
    sentence = SentenceHead(modules, description["hidden_size"], path) if modules.pooling else None
    if not modules.listed:
        log.warning("engine.pooling_assumed", model=config.name, pooling=str(modules.pooling[0]))
    total = evaluate_all([one for one in (model, sentence) if one is not None], path, progress, cancelled)
    wrapper = read_tokenizer(path, description)
    max_length = _max_length(config, description, modules, int(wrapper.model_max_length or 0))
    try:
        tokenizer = EncoderTokenizer(wrapper, max_length, lowers=modules.lowers)
    except NoFastTokenizer as error:
        raise LoadError(LoadFailure.UNSUPPORTED, f"{path.name}: {error}") from error
    heads = description.get("num_attention_heads")
    return LoadedEncoder(
        model,
        sentence,
        tokenizer,
        modules,
        max_length,
        description["vocab_size"],
        total,
        heads if isinstance(heads, int) else 0,
    )


def _usual_pooling(config: Mapping[str, Any]) -> Pooling | None:
    """How states are pooled where the folder does not tell; None for a cross-encoder, which does so by itself."""
    if _scores(config):
        return None
    return Pooling.LAST if config["model_type"] in CAUSAL_TYPES else Pooling.MEAN


def _classes(config: dict[str, Any]) -> tuple[Any, Any]:
    """mlx-lm's hook: the classes of model and arguments. Raises LoadError for what is not served."""
    kind, scores = config["model_type"], _scores(config)
    known = (*BERT_TYPES, *ROBERTA_TYPES, *CAUSAL_TYPES)
    if kind not in known:
        raise _unsupported(f"embedding models of type {kind[:100]} are not served; known are {', '.join(known)}")
    own_code = config.get("auto_map")
    if isinstance(own_code, Mapping) and "AutoModel" in own_code:
        raise _unsupported("the model comes with code of its own, which is not run")
    if kind not in CAUSAL_TYPES:
        return model_class(config, scores=scores), BertArgs
    if scores:
        raise _unsupported(f"cross-encoders of type {kind} are not served")
    if config.get("is_causal") is False or config.get("use_bidirectional_attention"):
        raise _unsupported("decoders with attention to all tokens are not served")
    return causal_classes(config)


def _scores(config: Mapping[str, Any]) -> bool:
    """Whether it is a cross-encoder. Raises LoadError for other heads."""
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not architectures:
        return False
    name = str(architectures[0])
    if name.endswith(_PAIRS):
        _check_labels(config)
        return True
    if not name.endswith(_TEXTS):
        raise _unsupported(f"{name[:100]} makes neither embeddings nor scores")
    return False


def _check_labels(config: Mapping[str, Any]) -> None:
    names, count = config.get("id2label"), config.get("num_labels")
    labels = count if isinstance(count, int) else len(names) if isinstance(names, Mapping) else 2
    if labels != 1:
        raise _unsupported(f"it tells {labels} classes apart; a cross-encoder has one score")


def _max_length(
    config: EngineConfig, description: Mapping[str, Any], modules: SentenceModules, tokenizer_length: int
) -> int:
    """The least of what the folder's files and the engine's configuration say."""
    own = modules.max_length or (tokenizer_length if 0 < tokenizer_length < _NO_LENGTH else None)
    if description["model_type"] in CAUSAL_TYPES:
        bound = longest(description) or description.get("max_position_embeddings")
    else:
        bound = BertArgs.from_dict(dict(description)).positions
    lengths = (own, bound, config.context_length)
    return min(length for length in lengths if isinstance(length, int) and length > 0)


def _unsupported(message: str) -> LoadError:
    return LoadError(LoadFailure.UNSUPPORTED, message)
