"""The table of features: programs are generated from it, and pairs of features are counted."""

from __future__ import annotations

from collections import Counter
from itertools import count

import pytest

from holdfast.testing.simulation.streams import stream
from simulation import command
from simulation.features import pairs, table
from simulation.features.feature import Feature, PartMaker
from simulation.features.pairs import PairCounts, met_pairs, possible_pairs, rare_pairs, table_lines
from simulation.features.table import FEATURE_OF_KIND, FEATURES, REQUESTS
from simulation.programs import generator
from simulation.programs.generator import ProgramGenerator
from simulation.programs.program import parts

SEEDS = range(1, 400)


def test_names_of_features_are_unique_and_a_kind_belongs_to_one_feature() -> None:
    assert len({feature.name for feature in FEATURES}) == len(FEATURES)
    kinds = Counter(kind for feature in FEATURES for kind in feature.kinds)
    assert [kind for kind, times in kinds.items() if times > 1] == []


@pytest.mark.parametrize("feature", [feature for feature in FEATURES if feature.part is not None], ids=lambda f: f.name)
def test_the_part_of_a_feature_uses_the_feature(feature: Feature) -> None:
    assert feature.part is not None
    made = feature.part(PartMaker(stream(1, feature.name), lambda: ["seq", []], count(1)))

    assert feature.name in {FEATURE_OF_KIND.get(part[0]) for part in parts(made)}


def test_every_pair_of_features_with_parts_is_generated() -> None:
    generated = {feature.name for feature in FEATURES if feature.part is not None or feature.around is not None}
    met = PairCounts()
    for seed in SEEDS:
        rounds = ProgramGenerator(seed, "i1").rounds()
        features = {FEATURE_OF_KIND.get(part[0], "") for program in rounds for part in parts(program)}
        met.update(met_pairs({"i1": features}, {}))

    assert [pair for pair in rare_pairs(met, 3) if generated.issuperset(pair)] == []


def test_a_new_feature_changes_only_programs_in_which_it_occurs(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {seed: ProgramGenerator(seed, "i1").rounds() for seed in SEEDS}
    monkeypatch.setattr(generator, "FEATURES", (*FEATURES, Feature("new", part=lambda make: ["new", "new1"])))
    after = {seed: ProgramGenerator(seed, "i1").rounds() for seed in SEEDS}

    changed = [seed for seed in SEEDS if after[seed] != before[seed]]
    with_new = [seed for seed in SEEDS if any(part[0] == "new" for one in after[seed] for part in parts(one))]
    assert changed == with_new
    assert 20 < len(with_new) < len(SEEDS) / 2


def test_features_of_an_instance_its_descendants_and_its_fork_meet() -> None:
    runs = {
        1: ("i1", 0, None),
        2: ("child", 0, 1),
        3: ("grandchild", 0, 2),
        4: ("i2", 0, None),
        5: ("i2-fork", 0, None),
    }
    reached = {"i1": {"step"}, "grandchild": {"saga"}, "i2": {"ask"}, "i2-fork": {"fork"}}

    assert met_pairs(reached, runs) == {("saga", "step"), ("ask", "fork")}


def test_rare_pairs_are_those_that_can_meet_and_did_not_often_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    features = (Feature("a"), Feature("b", never_with={"c": "they exclude each other"}), Feature("c"))
    for module in (pairs, table):
        monkeypatch.setattr(module, "FEATURES", features)
    counts = PairCounts({("a", "b"): 2})

    assert [*possible_pairs()] == [("a", "b"), ("a", "c")]
    assert rare_pairs(counts, 2) == [("a", "c")]
    assert [*table_lines(counts)] == [
        "  a: c 0, b 2",
        "  b: a 2",
        "  c: a 0",
        "  b and c never meet: they exclude each other",
    ]


@pytest.mark.parametrize("missing", [False, True])
def test_the_command_fails_if_a_pair_is_missing(monkeypatch: pytest.MonkeyPatch, missing: bool) -> None:
    met = [*possible_pairs()][int(missing) :]
    seeds = command._SEEDS_FOR_PAIRS
    outcomes = [command._Outcome(seed, False, command.FaultCounts(), set(met)) for seed in range(seeds)]
    monkeypatch.setattr(command, "_outcomes", lambda *_: outcomes)

    assert command.run(command.CommandOptions(seeds=seeds)) == int(missing)


def test_a_request_that_follows_another_is_in_the_table() -> None:
    assert {request.then for request in REQUESTS.values()} - {None} <= REQUESTS.keys()
