"""The scores of documents, from what an encoder made of them and of the query."""

import numpy as np
import pytest

from mlxd.daemon.api.embeddings.rerank import scores_of
from mlxd.daemon.api.encoding import Encoded
from mlxd.engines.embedding_types import EmbeddingOutput, EncoderHead, EncoderInfo


def encoded(head, *rows):
    vectors = tuple(None if row is None else np.array(row, "<f4").tobytes() for row in rows)
    return Encoded(EncoderInfo(head, 2, 100), EmbeddingOutput(vectors, 1, 0.0, cancelled=None in rows), 0.0, 0.0)


def test_a_documents_score_is_its_cosine_with_the_query_which_is_the_last():
    scores = scores_of(encoded(EncoderHead.EMBEDS, [2, 0], [0, 0], [-1, 1], [3, 0]))
    assert scores == pytest.approx({0: 1.0, 1: 0.0, 2: -(0.5**0.5)})


def test_a_cancelled_ranking_has_the_documents_that_were_reached():
    assert scores_of(encoded(EncoderHead.EMBEDS, [1, 0], None, [1, 0])) == {0: 1.0}
    assert scores_of(encoded(EncoderHead.EMBEDS, [1, 0], [1, 0], None)) == {}
    assert scores_of(encoded(EncoderHead.EMBEDS, None, None, None)) == {}
    assert scores_of(Encoded(None, None, 0.0, 0.0)) == {}


def test_a_cross_encoders_score_is_a_sigmoid_however_large_the_logit():
    scores = scores_of(encoded(EncoderHead.SCORES, [0], [1000], [-1000], None))
    assert scores == {0: 0.5, 1: 1.0, 2: 0.0}
