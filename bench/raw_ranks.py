#!/usr/bin/env python3
"""Raw mlx-lm on several ranks, the limit of what a model that is split can reach; to be run by `mlx.launch`.

usage: raw_ranks.py MODEL STREAMS TOKENS PROMPT      writes tokens a second of the last of three runs, as JSON
"""

from __future__ import annotations

import json
import sys
import time

import mlx.core as mx
from mlx_lm.generate import BatchGenerator
from mlx_lm.utils import sharded_load


def main() -> None:
    path, streams, tokens, prompt = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    group = mx.distributed.init()
    model, tokenizer = sharded_load(path, None, group)
    encoded = tokenizer.apply_chat_template([{"role": "user", "content": prompt}], add_generation_prompt=True)
    for _ in range(3):
        started = time.perf_counter()
        batch = BatchGenerator(model, stop_tokens=[])
        left = set(batch.insert([encoded] * streams, max_tokens=[tokens] * streams))
        while left:
            left -= {response.uid for response in batch.next_generated() if response.finish_reason is not None}
        seconds = time.perf_counter() - started
        batch.close()
    if group.rank() == 0:
        print(json.dumps(streams * tokens / seconds), flush=True)


if __name__ == "__main__":
    main()
