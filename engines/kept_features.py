"""Image features that are kept for prompts with the same images, in one budget with kept prefixes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

from mlxd.engines.cache_layers import CacheShape
from mlxd.engines.kept_prefixes import KeptPrefixes, PrefixLimits
from mlxd.engines.prefix_disk import PrefixDisk
from mlxd.engines.token_arrays import Prompt
from mlxd.engines.vision_rows import ImageFeatures

# Of the budget, which features may have although prefixes would fill it.
SHARE = 0.25


class KeptVision(KeptPrefixes):
    """Kept prefixes and the features of images, by their digests. Used on the engine's lane only.

    Features go before prefixes: whoever has the prefix does not need them.
    """

    def __init__(self, limits: PrefixLimits, shape: CacheShape, disk: PrefixDisk | None = None) -> None:
        super().__init__(limits, shape, disk)
        self._features: OrderedDict[bytes, ImageFeatures] = OrderedDict()
        self._alive: WeakValueDictionary[bytes, ImageFeatures] = WeakValueDictionary()
        self._spare: Callable[[], int | None] = lambda: None

    @property
    def nbytes(self) -> int:
        return super().nbytes + self.features_nbytes

    @property
    def features_nbytes(self) -> int:
        """Bytes of the features that are kept."""
        return sum(features.nbytes for features in self._features.values())

    @property
    def unkept_nbytes(self) -> int:
        """Bytes of the features that only rows hold."""
        return sum(features.nbytes for digest, features in self._alive.items() if digest not in self._features)

    def use_headroom(self, headroom: Callable[[], int | None]) -> None:
        super().use_headroom(headroom)
        self._spare = headroom

    def features(self, digest: bytes) -> ImageFeatures | None:
        """An image's features that are kept, or that some row still has."""
        if digest in self._features:
            self._features.move_to_end(digest)
        return self._alive.get(digest)

    def put_features(self, digest: bytes, features: ImageFeatures) -> None:
        """Keep an image's features, unless memory is short."""
        self._alive[digest] = features
        spare, most = self._spare(), self._limits.max_bytes
        if features.nbytes > SHARE * most or (spare is not None and features.nbytes > spare):
            return
        room = max(int(SHARE * most), most - super().nbytes)
        self._drop_features(room - features.nbytes)
        self._features[digest] = features
        super().trim(most - self.features_nbytes)

    def keep(self, layers: list[Any], tokens: Prompt) -> None:
        super().keep(layers, tokens)
        self._drop_features(max(int(SHARE * self._limits.max_bytes), self._limits.max_bytes - super().nbytes))
        super().trim(self._limits.max_bytes - self.features_nbytes)

    def trim(self, max_bytes: int, sparing: Prompt = ()) -> int:
        before = self.nbytes
        self._drop_features(max_bytes - super().nbytes)
        super().trim(max(0, max_bytes - self.features_nbytes), sparing)
        return before - self.nbytes

    def close(self, spill_timeout: float) -> None:
        self._features.clear()
        super().close(spill_timeout)

    def _drop_features(self, max_bytes: int) -> None:
        """The least recently used go until at most so many bytes are kept."""
        held = self.features_nbytes
        while self._features and held > max_bytes:
            held -= self._features.popitem(last=False)[1].nbytes
