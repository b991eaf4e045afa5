"""What a daemon that starts does not import, and that its garbage collector is back afterwards."""

import gc
import json
import os
import subprocess
import sys

CHILD = """
import gc, json, sys
from mlxd.daemon.cli.lean_start import lean_start
with lean_start():
    during = gc.isenabled()
    from mlxd.daemon.cli.starting import configure
    configure({"port": 0}, None)
found = {"modules": list(sys.modules), "during": during, "after": gc.isenabled(), "frozen": gc.get_freeze_count()}
print(json.dumps(found))
"""
# What answers, drawings, downloads and colours need, and none of it before there is something to do.
LATER = {
    "PIL",
    "huggingface_hub",
    "jinja2",
    "llguidance",
    "mlx",
    "mlx_lm",
    "mlx_vlm",
    "numpy",
    "pygments",
    "rich",
    "tokenizers",
    "transformers",
}


def test_a_start_imports_only_what_it_needs_and_is_not_looked_through(tmp_path):
    environ = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"} | {"HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", CHILD], env=environ, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert "aiohttp.web" in found["modules"]
    assert not LATER & set(found["modules"])
    assert (found["during"], found["after"]) == (False, True)
    assert found["frozen"] > 10_000


def test_a_module_that_counted_as_missing_can_be_imported_afterwards():
    code = """
from mlxd.daemon.cli.lean_start import lean_start
with lean_start():
    import structlog
import rich
print(rich.__name__, structlog.dev.rich)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["rich", "None"]


def test_a_module_that_is_imported_later_is_the_module():
    code = """
import sys
from mlxd.engines.imported_later import later
np = later("numpy")
assert "numpy" not in sys.modules
assert np.int32(3) + 1 == 4
import numpy
assert np.int32 is numpy.int32 and "int32" in vars(np)
try:
    np.no_such_thing
except AttributeError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "no_such_thing" in done.stdout
    assert gc.isenabled()


def test_mlx_is_not_looked_through_once_it_is_imported_and_what_comes_later_is():
    code = """
import gc, json
from mlxd.engines.backend import mlx_backend
mlx_backend()
first = gc.get_freeze_count()
later = [[] for _ in range(1000)]
mlx_backend()
print(json.dumps([first, gc.get_freeze_count(), len(gc.get_objects()), gc.isenabled()]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    frozen, again, others, enabled = json.loads(done.stdout)
    assert frozen > 50_000
    assert again <= frozen
    assert 1000 <= others < 10_000
    assert enabled
