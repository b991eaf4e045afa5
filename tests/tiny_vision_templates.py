"""Chat templates in the manner of each vision family's own; content is a string or a list of text and image parts."""

from __future__ import annotations

_TURN = "{% for m in messages %}"
_END = "{% endfor %}"


def _content(image: str, of: str = "m['content']", after_text: str = "") -> str:
    """The part of a template that writes one message's content, with `image` for every image in its place."""
    return (
        f"{{% if {of} is string %}}{{{{ {of} }}}}{after_text}{{% else %}}{{% for part in {of} or [] %}}"
        f"{{% if part['type'] == 'image' %}}{image}"
        f"{{% elif part['type'] == 'text' %}}{{{{ part['text'] }}}}{after_text}{{% endif %}}"
        "{% endfor %}{% endif %}"
    )


def chatml(image: str) -> str:
    """`<|im_start|>role … <|im_end|>`, as Qwen's models and InternVL write it."""
    return (
        f"{_TURN}<|im_start|>{{{{ m['role'] }}}}\n{_content(image)}<|im_end|>\n{_END}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )


def gemma(start: str, end: str, image: str) -> str:
    """Gemma's turns: the assistant is `model`, and a system message opens the first turn."""
    return (
        "{{ bos_token }}{% set first = '' %}"
        "{% if messages[0]['role'] == 'system' %}"
        "{% if messages[0]['content'] is string %}{% set first = messages[0]['content'] + '\n\n' %}"
        "{% else %}{% set first = messages[0]['content'][0]['text'] + '\n\n' %}{% endif %}"
        "{% set messages = messages[1:] %}{% endif %}"
        f"{_TURN}{start}{{{{ 'model' if m['role'] == 'assistant' else m['role'] }}}}\n"
        f"{{% if loop.first %}}{{{{ first }}}}{{% endif %}}{_content(image)}{end}\n{_END}"
        f"{{% if add_generation_prompt %}}{start}model\n{{% endif %}}"
    )


# A colon and no blank before an image, one before text.
IDEFICS = (
    f"<|im_start|>{_TURN}{{{{ m['role'] | capitalize }}}}"
    "{% if m['content'] is not string and m['content'][0]['type'] == 'image' %}:{% else %}: {% endif %}"
    f"{_content('<image>')}<end_of_utterance>\n{_END}{{% if add_generation_prompt %}}Assistant:{{% endif %}}"
)

# Images come before all text, whatever their place in the message.
LLAVA = (
    f"{_TURN}{{% if m['role'] != 'system' %}}{{{{ m['role'].upper() }}}}: {{% endif %}}"
    "{% if m['content'] is string %}{{ m['content'] }} {% else %}"
    "{% for part in m['content'] | selectattr('type', 'equalto', 'image') %}<image>\n{% endfor %}"
    "{% for part in m['content'] | selectattr('type', 'equalto', 'text') %}{{ part['text'] }} {% endfor %}{% endif %}"
    f"{_END}{{% if add_generation_prompt %}}ASSISTANT:{{% endif %}}"
)

MISTRAL = (
    f"{{{{ bos_token }}}}{_TURN}"
    f"{{% if m['role'] == 'system' %}}[SYSTEM_PROMPT]{_content('')}[/SYSTEM_PROMPT]"
    f"{{% elif m['role'] == 'user' %}}[INST]{_content('[IMG]')}[/INST]"
    f"{{% else %}}{_content('')}{{{{ eos_token }}}}{{% endif %}}{_END}"
)

# PaliGemma's own folders have no template: its prompt is an image and one line of text.
PALIGEMMA = f"{_TURN}{_content('<image>')}{_END}"

LLAMA = (
    f"{{{{ bos_token }}}}{_TURN}<|start_header_id|>{{{{ m['role'] }}}}<|end_header_id|>\n\n"
    f"{_content('<|image|>')}<|eot_id|>{_END}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)

GLM = (
    f"{_TURN}<|{{{{ m['role'] }}}}|>\n{_content('<|begin_of_image|><|image|><|end_of_image|>')}{_END}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
