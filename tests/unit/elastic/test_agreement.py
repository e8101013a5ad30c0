"""Agreement of ranks that each see only their own connections."""

from hypothesis import given
from hypothesis import strategies as st

from libra_core.elastic.agreement import NO_SAY, Agreed, Vote, ballot, verdicts

EPOCHS = st.sampled_from([NO_SAY, 0, 1, 2, 7])
VOTES = st.builds(Vote, contributed=EPOCHS, stays=EPOCHS, wants_snapshot=EPOCHS, follows=EPOCHS)


def agree(*ranks: list[Vote]) -> list[Agreed]:
    return verdicts([min(column) for column in zip(*(ballot(votes) for votes in ranks), strict=True)])


def test_one_shard_without_a_contribution_drops_that_of_all() -> None:
    whole, missing, bystander = Vote(contributed=4), Vote(contributed=0), Vote()
    assert agree([whole], [whole], [bystander])[0].contributed == 4
    assert agree([whole], [missing], [bystander])[0].contributed == 0


def test_shards_of_two_epochs_do_not_agree() -> None:
    assert agree([Vote(stays=4)], [Vote(stays=5)])[0].stays == 0


def test_nobody_with_a_say_is_no() -> None:
    assert agree([Vote()], [Vote()])[0] == Agreed(contributed=0, stays=0, wants_snapshot=0, follows=0)


def test_slots_are_judged_apart() -> None:
    first, second = agree([Vote(follows=1), Vote(follows=0)], [Vote(follows=1), Vote(follows=9)])
    assert (first.follows, second.follows) == (1, 0)


@given(st.lists(st.lists(VOTES, min_size=2, max_size=2), min_size=1, max_size=5))
def test_yes_is_agreed_exactly_when_all_who_have_a_say_name_one_epoch(ranks: list[list[Vote]]) -> None:
    for slot, verdict in enumerate(agree(*ranks)):
        for question in ("contributed", "stays", "wants_snapshot", "follows"):
            said = {epoch for votes in ranks if (epoch := getattr(votes[slot], question)) != NO_SAY}
            expected = said.pop() if len(said) == 1 else 0
            assert getattr(verdict, question) == expected
