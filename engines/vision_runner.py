"""A vision model and its rows, with and without images, on mlx-lm's BatchGenerator."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mlxd.engines.backend import Admitted, NewRow, RunnerStep
from mlxd.engines.cache_layers import CacheShape
from mlxd.engines.kept_features import KeptVision
from mlxd.engines.kept_prefixes import KeptPrefixes, PrefixLimits
from mlxd.engines.prefix_disk import PrefixDisk
from mlxd.engines.prompt_images import PreparedImage, PromptImages
from mlxd.engines.prompt_price import RowNeed
from mlxd.engines.row_group import Row
from mlxd.engines.runner_base import Measures
from mlxd.engines.text_runner import Joining, TextRunner
from mlxd.engines.token_arrays import token_array
from mlxd.engines.types import EngineConfig
from mlxd.engines.vision_encoder import Encoding
from mlxd.engines.vision_loader import LoadedVision
from mlxd.engines.vision_model import VisionLanguage, kept_layers, own_layers
from mlxd.engines.vision_rows import TEXT, ImageFeatures, RowContext, RowContexts

# Seconds of encoding in one step: the stall that others see, and the delay of an abort.
STRETCH = 0.1


@dataclass(slots=True, eq=False)
class _Waiting:
    """A row whose images are not all encoded; `missing` are those, in order, and `ready` the others by digest. `work`
    is the encoding of the first of them, once it has begun.
    """

    joining: Joining
    missing: list[PreparedImage]
    ready: dict[bytes, ImageFeatures] = field(default_factory=dict)
    work: Encoding | None = None

    def drop(self) -> None:
        """Give up what is under way."""
        if self.work is not None:
            self.work.drop()


class VisionRunner(TextRunner):
    """As TextRunner; a row with images joins the batch when they are encoded, one after the other and in stretches,
    with a step of the other rows after each.
    """

    _prefixes: KeptVision

    def __init__(
        self, loaded: LoadedVision, config: EngineConfig, measures: Measures, disk: PrefixDisk | None = None
    ) -> None:
        super().__init__(loaded.text, config, measures, disk)
        assert isinstance(self._model, VisionLanguage), "models without batches have another runner"
        self._encoder = loaded.encoder
        self._encoding: dict[int, _Waiting] = {}

    def _kept(self, limits: PrefixLimits, shape: CacheShape, disk: PrefixDisk | None) -> KeptPrefixes:
        return KeptVision(limits, shape, disk)

    @property
    def kv_bytes(self) -> int:
        return super().kv_bytes + self._prefixes.unkept_nbytes

    @property
    def _stretch(self) -> float:
        """Seconds of encoding in one step."""
        most = self._config.max_stall
        return STRETCH if most is None else min(STRETCH, most)

    def demand(self, more: RowNeed | None, chunk: int) -> int:
        """As of a text runner; rows whose images are being encoded count where they will join."""
        rows = [self._need(waiting) for waiting in self._encoding.values()]
        return self._beyond_held([*rows, *([] if more is None else [more])], chunk)

    def insert(self, row: NewRow) -> Admitted:
        """Queue a row in a batch, or its images to be encoded."""
        joining = self._prepared(row)
        waiting = self._look_up(joining)
        if waiting.missing:
            self._encoding[joining.row.uid] = waiting
        else:
            self._join_with(waiting)
        return Admitted(joining.row.uid, joining.row.cached)

    def remove(self, uids: Iterable[int], *, keep: bool = True) -> None:
        gone = list(uids)
        for waiting in [self._encoding.pop(uid) for uid in gone if uid in self._encoding]:
            waiting.drop()
        super().remove(gone, keep=keep)

    def step(self) -> RunnerStep:
        """A stretch of encoding, then what a text runner does."""
        failed = self._encode_next()
        step = super().step()
        return RunnerStep(step.tokens, (*failed, *step.failed)) if failed else step

    def rebuild(self) -> None:
        self._drop_encodings()
        super().rebuild()

    def close(self) -> None:
        self._drop_encodings()
        del self._encoder
        super().close()

    def _drop_encodings(self) -> None:
        for waiting in self._encoding.values():
            waiting.drop()
        self._encoding.clear()

    def _keep(self, row: Row, layers: list[Any], tokens: Sequence[int]) -> None:
        super()._keep(row, kept_layers(layers), tokens)

    def _look_up(self, joining: Joining) -> _Waiting:
        """Find the features that are there already."""
        waiting = _Waiting(joining, [])
        for image in {image.digest: image for image in _tail(joining.row)}.values():
            features = self._prefixes.features(image.digest)
            if features is None:
                waiting.missing.append(image)
            else:
                waiting.ready[image.digest] = features
        return waiting

    def _encode_next(self) -> tuple[tuple[int, Exception], ...]:
        """A stretch of one image, of the row that came first; rows whose images are all there then join. The rows that
        failed.
        """
        uid = next(iter(self._encoding), None)
        if uid is None:
            return ()
        waiting = self._encoding[uid]
        waiting.work = waiting.work or self._encoder.begin(waiting.missing[0])
        try:
            # with rows that go on there is no time to wait in
            features = waiting.work.go_on(self._stretch, patience=0 if self._groups else STRETCH)
        # whatever a model raises on an image is that request's alone
        except Exception as error:  # noqa: BLE001
            del self._encoding[uid]
            return ((uid, error.with_traceback(None)),)
        if features is None:
            return ()
        waiting.work = None
        self._price = self._price.with_images(self._encoder.price)
        self._prefixes.put_features(waiting.missing[0].digest, features)
        return self._join_ready()

    def _join_ready(self) -> tuple[tuple[int, Exception], ...]:
        """Let the rows join that miss no image any more; another row may have had the same ones encoded."""
        failed = []
        for uid, waiting in list(self._encoding.items()):
            self._take_found(waiting)
            if waiting.missing:
                continue
            del self._encoding[uid]
            try:
                self._join_with(waiting)
            # a prompt that its images do not fit is that request's alone
            except Exception as error:  # noqa: BLE001
                failed.append((uid, error.with_traceback(None)))
        return tuple(failed)

    def _take_found(self, waiting: _Waiting) -> None:
        still = []
        for image in waiting.missing:
            features = self._prefixes.features(image.digest)
            if features is None:
                still.append(image)
            else:
                waiting.ready[image.digest] = features
        waiting.missing = still

    def _join_with(self, waiting: _Waiting) -> None:
        joining = waiting.joining
        row, images = joining.row, joining.row.images
        context = TEXT if images is None else self._context(row, images, waiting.ready)
        layers = own_layers(joining.layers) if joining.layers is not None else self._model.make_cache()[:-1]
        contexts = RowContexts([context], [row.cached])
        self._join(Joining(row, [*layers, contexts], joining.cuts, joining.options))

    def _context(self, row: Row, images: PromptImages, ready: dict[bytes, ImageFeatures]) -> RowContext:
        tail = _tail(row)
        places = images.places(token_array(row.prompt))[images.tokens - sum(image.tokens for image in tail) :]
        features = [ready[image.digest] for image in tail]
        context: RowContext = self._model.context(row.prompt[: images.length], images.inputs, places, features)
        return context

    def _need(self, waiting: _Waiting) -> RowNeed:
        row = waiting.joining.row
        images = self._price.images.sum(waiting.missing)
        return RowNeed(len(row.prompt), row.left, row.cached, row.cached, images)


def _tail(row: Row) -> Sequence[PreparedImage]:
    """The images of a row that its kept prefix does not have, or not all of, in order."""
    if row.images is None:
        return ()
    places = row.images.places(token_array(row.prompt))
    return row.images.tail(int(np.searchsorted(places, row.cached)))
