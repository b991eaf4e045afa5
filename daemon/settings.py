"""The daemon's settings, fully resolved: seconds, absolute paths, every default filled in.

In a duration None means never. A path or a name that is not set is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, field, structs

from mlxd.daemon.units import Size
from mlxd.engines.shards import Backend, Sharding

STATE_DIR = "~/.local/state/mlxd"
KEYS_FILE = "~/.config/mlxd/keys.toml"
MODELS_DIR = "~/.mlxd/models"

Auto = Literal["auto"]
Off = Literal["off"]
Isolation = Literal["thread", "process"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["auto", "console", "json"]


def _home_path(text: str) -> Any:
    return field(default_factory=lambda: Path(text).expanduser())


class ServerSettings(Struct, frozen=True):
    """Where and how the daemon listens; `max_body` in bytes."""

    host: str = "127.0.0.1"
    port: int = 8484
    unix_socket: Path | None = None
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    max_body: int = 64_000_000
    keepalive_interval: float | None = 10.0
    drain_timeout: float = 30.0
    state_dir: Path = _home_path(STATE_DIR)


class AuthSettings(Struct, frozen=True):
    """Where the hashed API keys are kept."""

    keys_file: Path = _home_path(KEYS_FILE)


class ModelsSettings(Struct, frozen=True):
    """Where models are found, and what holds for each of them unless its own entry says otherwise."""

    dirs: tuple[Path, ...] = field(default_factory=lambda: (Path(MODELS_DIR).expanduser(),))
    hf_cache: bool = True
    default: str | None = None
    autoload: bool = True
    preload: tuple[str, ...] = ()
    restore: bool = False
    ttl: float | None = None
    watch_interval: float | None = 5.0


class ResidencySettings(Struct, frozen=True):
    """Who is loaded, who waits and for how long; `max_loaded` 0 is as many as memory allows."""

    max_loaded: int = 0
    max_loading: int = 1
    queue_size: int = 256
    queue_timeout: float = 120.0
    max_wait: float | None = 20.0
    min_residency: float = 0.0
    load_stall_timeout: float | None = 120.0
    unload_timeout: float = 30.0
    retry_backoff: float = 5.0


class MemorySettings(Struct, frozen=True):
    """Limits of the footprint: the ceiling resolves against machine memory, `soft` against the ceiling."""

    ceiling: Size | Auto = "auto"
    soft: Size = Size(fraction=0.9)
    poll_interval: float = 0.5


class EngineSettings(Struct, frozen=True):
    """One engine's limits. Lengths in tokens; 0 leaves `context_length` and `max_tokens` to the model.

    `draft` is the name of the model that proposes `draft_tokens` tokens a round; only a model's own entry has one.
    """

    isolation: Isolation = "thread"
    step_lock: bool = False
    blas: Auto | Off | Path = "auto"
    max_running: int = 32
    max_waiting: int = 256
    context_length: int = 0
    max_tokens: int = 0
    prefill_chunk: int = 2048
    max_stall: float | None = 0.25
    prefix_cache: Size | Auto | Off = "auto"
    prefix_cache_disk: Size | Off = "off"
    draft: str | None = None
    draft_tokens: int = 3


class SamplingSettings(Struct, frozen=True):
    """Sampling values for requests that do not say; None leaves the value to the next wider default."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None

    def given(self) -> dict[str, Any]:
        """The values that are set, by name."""
        return {name: value for name, value in structs.asdict(self).items() if value is not None}

    def over(self, wider: SamplingSettings) -> SamplingSettings:
        """These values, and those of `wider` where this sets none."""
        return structs.replace(wider, **self.given())


class PresetSettings(Struct, frozen=True):
    """A second name for a model, with sampling values and chat template arguments of its own."""

    name: str
    sampling: SamplingSettings = SamplingSettings()
    template: Mapping[str, Any] = field(default_factory=dict)


class ModelSettings(Struct, frozen=True):
    """One `[[model]]` entry. With neither path nor repo it is about a discovered model of that name.

    `ttl` already has the value of [models] where the entry has none; `engine` holds overrides only. `adapters` are
    the folders of LoRA adapters by the names that they are served under. With `hosts`, or those of a `hostfile`, the
    model is spread over them; `backend` None is the hostfile's, and else "ring".
    """

    name: str
    path: Path | None = None
    repo: str | None = None
    aliases: tuple[str, ...] = ()
    pinned: bool = False
    ttl: float | None = None
    hosts: tuple[str, ...] = ()
    hostfile: Path | None = None
    sharding: Sharding = "tensor"
    backend: Backend | None = None
    remote_shell: str = "ssh -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5"
    remote_python: str | None = None
    adapters: Mapping[str, Path] = field(default_factory=dict)
    engine: Mapping[str, Any] = field(default_factory=dict)
    sampling: SamplingSettings = SamplingSettings()
    presets: tuple[PresetSettings, ...] = ()

    @property
    def is_sharded(self) -> bool:
        """Whether the model is spread over hosts."""
        return bool(self.hosts) or self.hostfile is not None


class PeerSettings(Struct, frozen=True):
    """One `[[peer]]` entry: another mlxd, or any OpenAI-compatible server, whose `url` has no path below /v1.

    `models` are patterns over its names, `timeout` is seconds for which it may send nothing while it answers.
    """

    name: str
    url: str
    key: str | None = None
    models: tuple[str, ...] = ("*",)
    priority: int = 0
    timeout: float | None = 600.0


class ImagesSettings(Struct, frozen=True):
    """What is taken of images in one request: how many, bytes of a file, and pixels of all, width times height.

    `remote_hosts` are the hosts from which images are fetched by their URL, "*" for every public one.
    """

    max_count: int = 16
    max_bytes: int = 20_000_000
    max_pixels: int = 100_000_000
    remote_hosts: tuple[str, ...] = ()


class SupervisionSettings(Struct, frozen=True):
    """When an engine, its process or the event loop counts as hung, and whether the daemon ends for a new start."""

    answer_timeout: float | None = 30.0
    hang_timeout: float | None = 120.0
    loop_timeout: float | None = 30.0
    exit_on_hang: bool = False


class LogSettings(Struct, frozen=True):
    """What is logged, and how; `file` is written besides standard error, or without `stderr` instead of it.

    With `prompts` what is asked and answered is logged too.
    """

    level: LogLevel = "info"
    format: LogFormat = "auto"
    file: Path | None = None
    stderr: bool = True
    prompts: bool = False


class Settings(Struct, frozen=True):
    """Everything the daemon can be told; `Settings()` holds the defaults."""

    server: ServerSettings = field(default_factory=ServerSettings)
    auth: AuthSettings = field(default_factory=AuthSettings)
    models: ModelsSettings = field(default_factory=ModelsSettings)
    residency: ResidencySettings = ResidencySettings()
    memory: MemorySettings = MemorySettings()
    engine: EngineSettings = EngineSettings()
    images: ImagesSettings = ImagesSettings()
    supervision: SupervisionSettings = SupervisionSettings()
    model: tuple[ModelSettings, ...] = ()
    peer: tuple[PeerSettings, ...] = ()
    log: LogSettings = LogSettings()

    def model_for(self, name: str) -> ModelSettings | None:
        """The entry of the model with this name (not an alias), or of the model whose adapter it is, if any."""
        return next((entry for entry in self.model if entry.name == name or name in entry.adapters), None)

    def engine_for(self, name: str) -> EngineSettings:
        """The engine settings of a model: [engine] with the overrides of its entry, if it has one."""
        entry = self.model_for(name)
        if entry is None:
            return self.engine
        # every rank is a process, and no disk has all of a prefix
        forced = {"isolation": "process", "prefix_cache_disk": "off"} if entry.is_sharded else {}
        return structs.replace(self.engine, **{**entry.engine, **forced})


class LoadedConfig(Struct, frozen=True):
    """Settings, the file they were read from if any, and where each dotted key's value came from.

    `lines` has the line of each key in the file, and of each table.
    """

    settings: Settings
    path: Path | None
    origins: Mapping[str, str]
    lines: Mapping[str, int] = field(default_factory=dict)
