"""What several checks ask of one look's facts is worked out once, and never answered of another look's."""

from netdoctor.facts.base import asked_again


def test_the_same_facts_are_asked_once_others_anew() -> None:
    asked: list[tuple[list[int], int]] = []

    @asked_again
    def rule(fact: list[int], other: int) -> int:
        asked.append((fact, other))
        return sum(fact) + other

    here, there = [1, 2], [1, 2]
    assert [rule(here, 1), rule(here, 1), rule(here, 2), rule(there, 2), rule(there, 2), rule(here, 1)] == [4, 4, 5, 5, 5, 4]
    assert asked == [(here, 1), (here, 2), (there, 2), (here, 1)] and asked[2][0] is there
