"""Columns of categories become columns of 0 and 1, by a vocabulary that clients pool."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ccfcpp.clustering.client_data import make_client
from ccfcpp.clustering.preprocessing import categories
from ccfcpp.clustering.preprocessing.parameters import PreprocessingParams
from ccfcpp.clustering.run import ClusteringRun
from ccfcpp.core.config import Tree, VectorsConfig
from ccfcpp.core.errors import FederationError, UsageError
from ccfcpp.core.randomness import Randomness
from ccfcpp.data.categories import code
from ccfcpp.engine.algorithm import ClientContext
from ccfcpp.engine.client import Client
from ccfcpp.engine.payload import pack, unpack
from tests.support.vectors import SECURE, Points, experiment, plan, there

CLIENTS = 4
ABSENT: Tree = {"availability": {"disconnection_rate": 0.25}}


def words(seed: int, samples: int, kinds: int) -> list[list[str]]:
    """Two columns of words, some of which are frequent; some are missing in the first."""
    source = np.random.default_rng(seed)
    drawn = (source.random((samples, 2)) ** 2 * kinds).astype(int)
    drawn[source.random(samples) < 0.1, 0] = -1
    return [["NA" if kind < 0 else f"kind {kind}" for kind in row] for row in drawn]


def table(rows: list[list[str]], seed: int) -> tuple[Points, Any]:
    """A column of numbers and the words' codes, and the client of each row."""
    source = np.random.default_rng(seed + 1)
    codes = np.array([[code(word) for word in row] for row in rows])
    owners = source.integers(CLIENTS, size=len(rows))
    owners[:CLIENTS] = np.arange(CLIENTS)
    return np.column_stack([source.normal(size=len(rows)), codes]), owners


def run_on(rows: list[list[str]], seed: int, *trees: Tree, **vectors: object) -> ClusteringRun:
    points, owners = table(rows, seed)
    own: Tree = {"categories": ["a", "b"], "missing": "mean", **vectors}
    return experiment("fed-km", points, owners, 2, {"vectors": own}, *trees)


def expanded(run: ClusteringRun) -> Points:
    """All rows, as the clients prepare them in the first round."""
    state, report = run.federation().run_round(run.algorithm.initial_state(run.randomness), 0)
    assert report.refused == {}
    everyone = make_client(run.evaluator.data, -1, "all", torch.arange(len(run.data)))
    found = run.algorithm.represent(state, everyone)
    assert found is not None
    return found.numpy()


def slow_columns(
    rows: list[list[str]], owners: Any, taking_part: Any, most: int, rare: int
) -> list[dict[str, list[float]]]:
    """For each column of words, the columns of 0 and 1 by word: NaN where a word is missing."""
    columns = []
    for place in range(2):
        pooled: Counter[str] = Counter()
        for client in range(CLIENTS):
            held = [rows[n][place] for n in taking_part if owners[n] == client]
            own = Counter(word for word in held if word != "NA")
            pooled.update({word: times for word, times in own.items() if times >= rare})
        least = sorted(pooled.values(), reverse=True)[: most + 1]
        # Of words with equally many rows any may be kept.
        bound = least[most] if len(least) > most else 0
        kept = [word for word, times in pooled.items() if times > bound]
        columns.append(
            {
                word: [np.nan if row[place] == "NA" else float(row[place] == word) for row in rows]
                for word in kept
            }
        )
    return columns


@pytest.mark.parametrize("tree", [{}, ABSENT, SECURE])
@given(seed=st.integers(0, 10**6), most=st.integers(1, 6), rare=st.integers(1, 6))
@settings(max_examples=8, deadline=None)
def test_frequent_categories_have_columns(tree: Tree, seed: int, most: int, rare: int) -> None:
    rows = words(seed, 120, 7)
    run = run_on(rows, seed, tree, most_categories=most, rare=rare)
    found = expanded(run)
    assert found.shape == (120, 1 + 2 * most)
    _, owners = table(rows, seed)
    by_word = slow_columns(rows, owners, there(run), most, rare)
    for place, wanted in enumerate(by_word):
        slots = found[:, 1 + place * most : 1 + (place + 1) * most]
        for column in wanted.values():
            values = np.array(column)
            values[np.isnan(values)] = np.nanmean(values[there(run)])
            assert any(np.allclose(slot, values, atol=1e-6) for slot in slots.T)
        # A row has 1 in one column of its words at most.
        assert slots.sum(axis=1).max() <= 1 + 1e-6


def counted(config: VectorsConfig, values: torch.Tensor) -> categories.CategoryCounts:
    """Return the update of a client with these rows."""
    context = ClientContext(len(values), 1)
    work = categories.VocabularyClientWork(categories.VOCABULARY, context, config)
    return work.of_client(PreprocessingParams(), Client(0, "", values), Randomness(0))


def test_a_rare_value_stays_at_its_client() -> None:
    rows = [["common", "common"]] * 40 + [["secret", "common"]] * 4
    points = torch.tensor([[0.0, code(a), code(b)] for a, b in rows], dtype=torch.float64)
    counts = counted(VectorsConfig(categories=("a", "b"), rare=5), points).counts
    assert sorted(counts[counts > 0].tolist()) == [40, 44]


def same_bucket(word: str) -> str:
    """Return another word that lies in the bucket of ``word``."""
    for number in range(10**6):
        codes = torch.tensor([code(word), code(f"other {number}")], dtype=torch.float64)
        buckets, checks = categories.bucket_and_check(codes, 0)
        if buckets[0] == buckets[1] and checks[0] != checks[1]:
            return f"other {number}"
    raise AssertionError("no bucket is shared")


def test_a_rare_value_in_a_frequent_ones_bucket_stays_there_too() -> None:
    config = VectorsConfig(categories=("a",), rare=5, most_categories=2)
    without = torch.tensor([[code("common")]] * 40, dtype=torch.float64)
    secret = torch.tensor([[code(same_bucket("common"))]] * 4, dtype=torch.float64)
    sent = counted(config, torch.cat([without, secret]))
    alone = counted(config, without)
    for name, part in pack(sent).items():
        assert torch.equal(part, pack(alone)[name])
    # Nor has its row a 1 in the column of the frequent one.
    server = categories.VocabularyServerWork(config)
    known, _ = server.aggregate(PreprocessingParams(), [sent], Randomness(0))
    codes = torch.cat([without[:1], secret[:1]])
    assert categories.one_hot(codes, known).tolist() == [[1.0, 0.0], [0.0, 0.0]]


def test_a_column_of_equally_frequent_values_has_some_of_them() -> None:
    """Buckets of two values seem to be the most frequent ones, whatever the salt."""
    rows = [[f"kind {number % 500}", "a"] for number in range(2000)]
    slots = expanded(run_on(rows, 0, rare=1, most_categories=3))[:, 1:4]
    assert slots.round().sum(axis=0).tolist() == [4, 4, 4]


def test_a_column_of_many_values_has_the_most_frequent() -> None:
    """Some of the thousand buckets hold several values, which are not of the vocabulary."""
    rows = [[f"kind {number % 1000}", "a"] for number in range(2000)] + [["often", "a"]] * 50
    run = run_on(rows, 0, rare=1, most_categories=1)
    assert expanded(run)[:, 1].round().tolist() == [0.0] * 2000 + [1.0] * 50


def test_two_categories_of_one_bucket_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """With few buckets some are shared, until another salt separates all."""
    monkeypatch.setattr(categories, "BUCKETS", 16)
    monkeypatch.setattr(categories, "TRIES", 200)
    monkeypatch.setattr("ccfcpp.clustering.preprocessing.vectors.TRIES", 200)
    rows = words(3, 200, 6)
    run = run_on(rows, 3, most_categories=6, rare=1)
    state, _ = run.federation().run_round(run.algorithm.initial_state(run.randomness), 0)
    known: Any = state.preparation
    assert known.salt > 0
    for place in range(2):
        distinct = {row[place] for row in rows} - {"NA"}
        codes = torch.tensor([*map(code, distinct)], dtype=torch.float64)
        keys = categories.category_key(codes, known.salt)
        assert len(set(keys.tolist())) == len(distinct)


def test_too_many_values_end_the_run_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(categories, "BUCKETS", 4)
    run = run_on(words(0, 200, 9), 0, rare=1)
    with pytest.raises(FederationError, match="two categories of a column cannot be told apart"):
        run.train()


def test_a_column_whose_values_are_all_rare_ends_the_run_in_one_line() -> None:
    rows = [["often", f"kind {number}"] for number in range(40)]
    with pytest.raises(FederationError, match="nothing is left of column 'b': no client has 5"):
        run_on(rows, 0, rare=5).train()


def test_a_column_of_categories_counts_as_much_as_one_of_numbers() -> None:
    found = expanded(run_on(words(5, 300, 5), 5, scale="standard", most_categories=8))
    variances = found.var(axis=0)
    np.testing.assert_allclose(variances[0], 1, atol=1e-6)
    np.testing.assert_allclose(variances[1:].reshape(2, 8).sum(axis=1), 1, atol=1e-6)


def test_a_state_that_was_packed_goes_on() -> None:
    run = run_on(words(1, 90, 4), 1, scale="standard")
    state, kind = run.algorithm.initial_state(run.randomness), run.algorithm.state_type
    for number in range(2):
        whole, _ = run.federation().run_round(state, number)
        state, _ = run.federation().run_round(unpack(kind, pack(state)), number)
        assert torch.equal(state.centroids, whole.centroids)


def test_an_encoder_is_refused() -> None:
    """The last columns of an embedding are no codes."""
    tree: Tree = {"data": {"encoder": "torchvision:resnet18"}, "vectors": {"categories": ["a"]}}
    with pytest.raises(UsageError, match="has no effect on what an encoder embeds"):
        plan("fed-km", 2, tree)


def test_noise_is_refused_with_the_means_that_exist() -> None:
    with pytest.raises(UsageError, match=r"privacy\.level = client is refused with vectors\.cat"):
        plan("fed-km", 2, {"vectors": {"categories": ["a"]}, "privacy": {"level": "client"}})
