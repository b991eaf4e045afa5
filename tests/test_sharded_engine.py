"""A model on several ranks of this machine is the same engine: what is tested of one process holds for it.

Two ranks go with the other tests, the rest with `make soak`.
"""

from __future__ import annotations

import pytest
from sharded_harness import TWO, Group, groups
from test_engine import (  # noqa: F401 - collected here too, on other fixtures
    test_a_cancelled_request_keeps_what_it_generated,
    test_a_logit_bias_forces_and_forbids_tokens,
    test_a_reader_cancelled_before_the_first_token_frees_the_slot,
    test_a_seed_gives_the_same_text_whoever_else_is_served,
    test_a_stop_string_ends_the_request_and_is_never_shown,
    test_abort_all_ends_every_request_with_the_error_and_the_engine_goes_on,
    test_eight_greedy_requests_together_give_what_each_gives_alone,
    test_leaving_the_loop_frees_the_slot,
    test_presence_and_frequency_penalties_do_not_count_the_prompt,
    test_sampling_that_leaves_one_choice_is_greedy,
    test_staggered_requests_give_what_each_gives_alone,
    test_text_that_only_began_like_a_stop_string_is_shown_at_the_end,
    test_the_engine_gives_the_tokens_that_mlx_lm_gives,
    test_the_last_output_has_reason_usage_and_timing,
    test_unseeded_sampling_differs_from_run_to_run,
)
from test_sharded_groups import engine, lanes, tiny_model  # noqa: F401 - fixtures over `group`

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module", params=groups(TWO), ids=str)
def group(request: pytest.FixtureRequest) -> Group:
    return request.param
