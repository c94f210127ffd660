from __future__ import annotations

from collections import Counter

from tests.systems.bluedove.cloud import PLANE, A, B, C, Cloud

from tidings.systems.bluedove.laws import placed_at_rest


def cloud_with_subscriptions() -> Cloud:
    cloud = Cloud(PLANE, [[50], [50]], [A, B])
    cloud.world.count_kinds = True
    for number in range(12):
        cloud.subscribe(A, f"s{number}", f"x >= {8 * number} AND x < {8 * number + 10} AND y > 40")
    cloud.run(3_000)
    return cloud


def kinds_while(cloud: Cloud, for_ms: int) -> Counter[str]:
    before = Counter(cloud.world.kinds)
    cloud.run(for_ms)
    return Counter(cloud.world.kinds) - before


def test_what_a_matcher_has_confirmed_is_not_sent_again() -> None:
    cloud = cloud_with_subscriptions()
    kinds = kinds_while(cloud, 120_000)
    assert kinds["PlaceCopy"] == 0
    assert 0 < kinds["Holdings"] <= 120 / 8 + 1
    assert kinds["HoldingsDiffer"] == 0
    placed_at_rest(cloud.world)


def test_a_copy_that_a_matcher_has_lost_is_placed_again() -> None:
    cloud = cloud_with_subscriptions()
    lost = next(iter(cloud.nodes[B].sets[0]))
    cloud.nodes[B].copies.drop(0, lost)
    kinds = kinds_while(cloud, 10_000)
    assert kinds["PlaceCopy"] == 1
    assert lost in cloud.nodes[B].sets[0]
    assert kinds_while(cloud, 30_000)["HoldingsDiffer"] == 0


def test_a_matcher_that_holds_what_nobody_claims_lets_it_run_out() -> None:
    cloud = cloud_with_subscriptions()
    del cloud.nodes[A].own["s11"]  # it forgot, and does not say so
    cloud.nodes[A]._confirmed.clear()
    for name, own in cloud.nodes[A].own.items():
        own.placed.clear()
        cloud.nodes[A]._unplaced[name] = None
    cloud.run(20_000)
    assert any(key[0] == "s11" for key in cloud.nodes[B].sets[0])
    cloud.run(40_000)
    assert not any(key[0] == "s11" for held in cloud.nodes[B].sets for key in held)
    placed_at_rest(cloud.world)
    assert kinds_while(cloud, 30_000)["HoldingsDiffer"] == 0


def test_segments_that_changed_hands_are_agreed_on_again() -> None:
    cloud = cloud_with_subscriptions()
    cloud.join(C, A)
    cloud.run(60_000)
    assert any(cloud.nodes[C].sets)
    placed_at_rest(cloud.world)
    kinds = kinds_while(cloud, 60_000)
    assert (kinds["PlaceCopy"], kinds["HoldingsDiffer"]) == (0, 0)
