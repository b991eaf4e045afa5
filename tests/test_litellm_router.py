"""The example configuration of LiteLLM over two real daemons that are each other's peers."""

import asyncio
import os
import signal
import socket
from pathlib import Path

import pytest
import yaml
from daemon_process import Api, daemon

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else its import asks the network for prices

import litellm

CONFIG = Path(__file__).resolve().parent.parent / "etc" / "litellm.yaml"
REQUESTS = 20


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def peer(port):
    return f'[[peer]]\nname = "other"\nurl = "http://127.0.0.1:{port}"\n'


@pytest.fixture
def router(monkeypatch):
    def made(one, two):
        for name, running in (("ONE", one), ("TWO", two)):
            monkeypatch.setenv(f"MLXD_{name}", f"{running.url}/v1")
            monkeypatch.setenv(f"MLXD_{name}_KEY", "unused")
        config = yaml.safe_load(CONFIG.read_text())
        return litellm.Router(model_list=config["model_list"], **config["router_settings"])

    return made


async def test_every_model_is_answered_by_whichever_daemon_and_when_one_is_killed(
    tmp_path, models_dir, tiny_model, router
):
    qwen, gemma = models_dir({"qwen": tiny_model}), tmp_path / "gemma"
    gemma.mkdir()
    (gemma / "gemma").symlink_to(tiny_model)
    port = free_port()
    with (
        daemon(tmp_path / "one", qwen, peer(port)) as one,
        daemon(tmp_path / "two", gemma, peer(one.url.rpartition(":")[2]), port=port, exit_code=None) as two,
    ):
        route = router(one, two)

        async def ask(model):
            messages = [{"role": "user", "content": "Hi"}]
            answer = await route.acompletion(model=model, messages=messages, max_tokens=4, temperature=0)
            return answer.choices[0].message.content

        for running in (one, two):
            async with Api(running.url) as api, asyncio.timeout(30):
                while (await api.get("/admin/peers"))["data"][0]["state"] != "up":
                    await asyncio.sleep(0.05)
        answers = await asyncio.gather(*[ask(("qwen", "gemma")[number % 2]) for number in range(REQUESTS)])
        assert len(set(answers)) == 1  # the same weights, whoever answers
        two.process.send_signal(signal.SIGKILL)
        after = await asyncio.gather(*[ask("qwen") for _ in range(REQUESTS)])
        assert set(after) == set(answers)
