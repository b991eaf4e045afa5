"""`mlxd run --image` sends files with the first question, and refuses what is no image before anything is sent."""

import pytest
from cli_process import mlxd, on_terminal
from fake_daemon import DONE, chunk, error, event, model
from image_bodies import FILES, GIF, PNG, data_url


@pytest.fixture
def ask(daemon, tmp_path):
    def ask(*args, stdin=b"", **extra):
        return mlxd("run", "qwen", *args, home=tmp_path, stdin=stdin, MLXD_URL=daemon.url, **extra)

    return ask


def file(folder, name, data):
    path = folder / name
    path.write_bytes(data)
    return str(path)


def sent(url):
    return {"type": "image_url", "image_url": {"url": url}}


def text(words):
    return {"type": "text", "text": words}


def contents(body):
    return [turn["content"] for turn in body["messages"]]


def test_images_go_with_the_question_in_their_order(ask, daemon, tmp_path):
    png, gif = file(tmp_path, "a.png", PNG), file(tmp_path, "no-ending", GIF)
    done = ask("What is this?", "--image", png, "--system", "Look.", "--image", gif)
    assert (done.returncode, done.stdout) == (0, b"Hello there\n")
    [(path, body)] = daemon.asked("POST")
    assert path == "/v1/chat/completions"
    urls = [sent(data_url(PNG)), sent(data_url(GIF, "image/gif"))]
    assert contents(body) == ["Look.", [*urls, text("What is this?")]]


@pytest.mark.parametrize("kind", FILES)
def test_each_kind_is_named_by_its_bytes(kind, ask, daemon, tmp_path):
    ask("Hi", "--image", file(tmp_path, "x.bmp", FILES[kind]))
    [(_, body)] = daemon.asked("POST")
    assert contents(body) == [[sent(data_url(FILES[kind], kind)), text("Hi")]]


def test_images_go_with_piped_text(ask, daemon, tmp_path):
    ask("--image", file(tmp_path, "a.png", PNG), stdin=b"a text")
    [(_, body)] = daemon.asked("POST")
    assert contents(body) == [[sent(data_url(PNG)), text("a text")]]


def test_what_cannot_be_sent_is_a_usage_error_that_says_why(ask, daemon, tmp_path):
    with (tmp_path / "big.png").open("wb") as big:
        big.write(PNG)
        big.truncate(20_000_001)
    for name, why in (
        (str(tmp_path / "missing.png"), "No such file"),
        (str(tmp_path), "Is a directory"),
        (file(tmp_path, "empty.png", b""), "is empty"),
        (file(tmp_path, "page.png", b"<svg>"), "PNG, JPEG, WebP or GIF"),
        (str(tmp_path / "big.png"), "20000000 bytes (images.max_bytes)"),
    ):
        done = ask("Hi", "--image", name)
        said = " ".join(done.stderr.decode().split())
        assert (done.returncode, done.stdout) == (2, b"")
        assert "--image" in said
        assert why in said, said
    assert not daemon.requests


def test_the_largest_file_is_that_of_the_configuration(ask, daemon, tmp_path):
    png = file(tmp_path, "a.png", PNG)
    assert ask("Hi", "--image", png, MLXD_IMAGES__MAX_BYTES=str(len(PNG) - 1)).returncode == 2
    assert ask("Hi", "--image", png, MLXD_IMAGES__MAX_BYTES=str(len(PNG))).returncode == 0
    # whoever names the daemon needs no configuration that is right
    assert ask("Hi", "--image", png, MLXD_IMAGES__MAX_BYTES="big").returncode == 0
    assert len(daemon.asked("POST")) == 2


def test_show_tells_what_a_model_can_do(daemon, tmp_path):
    daemon.models = [model("qwen", capabilities=["completion", "vision"], context_length=8192)]
    shown = mlxd("show", "qwen", home=tmp_path, MLXD_URL=daemon.url).stdout.decode()
    said = dict(line.split(None, 1) for line in shown.replace("can do", "can-do").splitlines())
    assert (said["can-do"], said["context"]) == ("completion, vision", "8192 tokens")


def test_a_refusal_of_the_daemon_is_told(ask, daemon, tmp_path):
    message = "messages[0].content[0]: model qwen takes text only"
    daemon.answers["POST", "/v1/chat/completions"] = (400, error("unsupported_capability", message))
    done = ask("Hi", "--image", file(tmp_path, "a.png", PNG))
    assert (done.returncode, done.stderr.decode()) == (1, f"mlxd: {message} (unsupported_capability)\n")


def test_in_a_chat_images_go_with_the_first_question_that_is_answered(daemon, tmp_path):
    png = file(tmp_path, "a.png", PNG)
    daemon.chat = [event(error("memory_ceiling", "retry")), DONE]
    with on_terminal("run", "qwen", "--image", png, home=tmp_path, MLXD_URL=daemon.url) as terminal:
        terminal.wait_for(">>> ")
        terminal.type("one\n")
        terminal.wait_for("(memory_ceiling)")
        daemon.chat = [chunk("A square."), DONE]
        terminal.type("two\n")
        terminal.wait_for("A square.")
        terminal.wait_for(">>> ", 3)
        terminal.type("three\n")
        terminal.wait_for("A square.", 2)
        terminal.wait_for(">>> ", 4)
        terminal.type("\x04")
        assert terminal.end() == 0
    asked = [contents(body) for path, body in daemon.asked("POST") if path == "/v1/chat/completions"]
    with_image = [sent(data_url(PNG))]
    assert asked == [
        [[*with_image, text("one")]],
        [[*with_image, text("two")]],
        [[*with_image, text("two")], "A square.", "three"],
    ]
