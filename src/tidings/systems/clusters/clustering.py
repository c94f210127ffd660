"""Groups of similar boxes: three ways, each an array of labels.

"MST" in Casalicchio et al. is R. Jain's ("The Art of Computer Systems Performance Analysis", section 15.5): the
two nearest clusters are merged, and their centroid computed again, until K are left: `merged`. Cutting the
K − 1 longest edges of a minimum spanning tree is the other reading, single linkage: `cut`. It
chains: on uniform data nearly everything ends in one cluster. `kmeans`, over the ends of boxes and not
their centres alone, is the better one beside them.

All take weights, so that a point may stand for many: `micro_clusters` brings millions down to
what these can take, and `neighbours` and `boruvka` find the spanning tree of many without all distances.
Those two are approximate: neighbours are sought in the surrounding cells of a grid alone.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from tidings.systems.interface import Floats, Numbers

Method = Literal["merged", "cut", "kmeans"]

_ROUNDS = 30


def labels_of(
    method: Method, points: Floats, weights: Floats, clusters: int, *, centroids: Floats | None = None
) -> Numbers:
    """The cluster of each point, 0 to at most clusters − 1. MST looks at centroids, k-means at the points."""
    if len(points) <= clusters:
        return np.arange(len(points))
    if method == "kmeans":
        return kmeans(points, weights, clusters)
    centres = points if centroids is None else centroids
    return merged(centres, weights, clusters) if method == "merged" else cut(centres, clusters)


# ---------------------------------------------------------------------- MST


def merged(centroids: Floats, weights: Floats, clusters: int) -> Numbers:
    """Merge the two nearest clusters, whose centroid is that of all their points, until so many are left."""
    centres, mass = centroids.astype(np.float64).copy(), weights.astype(np.float64).copy()
    count = len(centres)
    label = np.arange(count)
    alive = np.ones(count, bool)
    distances = _squared(centres, centres)
    np.fill_diagonal(distances, np.inf)
    nearest = np.argmin(distances, axis=1)
    least = distances[np.arange(count), nearest]
    for _ in range(count - clusters):
        one = int(np.argmin(least))
        other = int(nearest[one])
        centres[one] = (centres[one] * mass[one] + centres[other] * mass[other]) / (mass[one] + mass[other])
        mass[one] += mass[other]
        label[label == other] = one
        alive[other] = False
        distances[other, :] = distances[:, other] = np.inf
        least[other] = np.inf
        fresh = np.where(alive, _squared(centres[one : one + 1], centres)[0], np.inf)
        fresh[one] = np.inf
        distances[one, :] = distances[:, one] = fresh
        stale = np.flatnonzero(alive & ((nearest == one) | (nearest == other)))
        stale = np.union1d(stale, [one])
        nearest[stale] = np.argmin(distances[stale], axis=1)
        least[stale] = distances[stale, nearest[stale]]
        closer = alive & (fresh < least)
        nearest[closer], least[closer] = one, fresh[closer]
    return np.unique(label, return_inverse=True)[1].astype(np.int64)


def cut(centroids: Floats, clusters: int) -> Numbers:
    """The spanning tree without its longest edges."""
    ends, lengths = spanning_tree(centroids)
    kept = np.argsort(lengths, kind="stable")[: len(centroids) - clusters]
    return components(len(centroids), ends[kept])


def spanning_tree(points: Floats) -> tuple[Numbers, Floats]:
    """The edges of a minimum spanning tree (n − 1 × 2) and their lengths, by Prim: every distance is looked at."""
    count = len(points)
    outside = np.ones(count, bool)
    outside[0] = False
    near = np.zeros(count, np.int64)
    distance = _squared(points[:1], points)[0]
    ends, lengths = np.empty((max(0, count - 1), 2), np.int64), np.empty(max(0, count - 1))
    for number in range(count - 1):
        nearest = int(np.argmin(np.where(outside, distance, np.inf)))
        ends[number], lengths[number] = (near[nearest], nearest), distance[nearest]
        outside[nearest] = False
        fresh = _squared(points[nearest : nearest + 1], points)[0]
        closer = fresh < distance
        near[closer], distance[closer] = nearest, fresh[closer]
    return ends, np.sqrt(lengths)


def boruvka(count: int, ends: Numbers, lengths: Floats) -> Numbers:
    """Which edges of a graph are in its minimum spanning forest: each component takes its shortest way out."""
    label = np.arange(count)
    order = np.lexsort((np.arange(len(lengths)), lengths))  # ties by number: so no two components disagree
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    chosen = np.zeros(len(ends), bool)
    while True:
        one, other = label[ends[:, 0]], label[ends[:, 1]]
        leaving = np.flatnonzero(one != other)
        if not len(leaving):
            return np.flatnonzero(chosen)
        best = np.full(count, len(ends), np.int64)
        np.minimum.at(best, one[leaving], rank[leaving])
        np.minimum.at(best, other[leaving], rank[leaving])
        taken = order[np.unique(best[best < len(ends)])]
        chosen[taken] = True
        label = components(count, ends[chosen])


def components(count: int, ends: Numbers) -> Numbers:
    """The component of each point, numbered from 0: each takes the least label that it knows of."""
    label = np.arange(count)
    while True:
        least = np.minimum(label[ends[:, 0]], label[ends[:, 1]])
        fresh = label.copy()
        np.minimum.at(fresh, ends[:, 0], least)
        np.minimum.at(fresh, ends[:, 1], least)
        np.minimum.at(fresh, label[ends[:, 0]], least)
        np.minimum.at(fresh, label[ends[:, 1]], least)
        fresh = fresh[fresh]
        if (fresh == label).all():
            return np.unique(label, return_inverse=True)[1].astype(np.int64)
        label = fresh


# ---------------------------------------------------------------------- k-means


def kmeans(points: Floats, weights: Floats, clusters: int, seed: int = 0) -> Numbers:
    """Lloyd's, begun as k-means++ does."""
    rng = np.random.default_rng(seed)
    centres = points[[rng.choice(len(points), p=weights / weights.sum())]]
    distance = _squared(points, centres)[:, 0]
    while len(centres) < clusters:
        chance = distance * weights
        if not chance.any():
            break
        fresh = points[[rng.choice(len(points), p=chance / chance.sum())]]
        centres = np.concatenate([centres, fresh])
        distance = np.minimum(distance, _squared(points, fresh)[:, 0])
    label = np.argmin(_squared(points, centres), axis=1)
    for _ in range(_ROUNDS):
        mass = np.bincount(label, weights, len(centres))
        sums = np.stack([np.bincount(label, weights * axis, len(centres)) for axis in points.T], axis=1)
        filled = mass > 0
        centres[filled] = sums[filled] / mass[filled, None]
        fresh_label = np.argmin(_squared(points, centres), axis=1)
        if (fresh_label == label).all():
            break
        label = fresh_label
    return np.unique(label, return_inverse=True)[1].astype(np.int64)


# ---------------------------------------------------------------------- many


def micro_clusters(points: Floats, cells: int) -> tuple[Numbers, Numbers]:
    """The cell that each point lies in, of a grid of so many to an axis of [0, 1], and the cells' coordinates.

    Points of a cell are taken for one at their mean.
    """
    grid = np.clip((points * cells).astype(np.int64), 0, cells - 1)
    distinct, label = np.unique(grid, axis=0, return_inverse=True)
    return label.reshape(-1).astype(np.int64), distinct


def neighbours(centres: Floats, cells: Numbers) -> tuple[Numbers, Floats]:
    """Edges between points whose cells touch, along an axis or across, and chains that join what is left apart."""
    axes = cells.shape[1]
    sizes = cells.max(axis=0) + 3 if len(cells) else np.ones(axes, np.int64)
    scale = np.concatenate([[1], np.cumprod(sizes[:-1])]).astype(np.int64)
    keys = (cells + 1) @ scale
    order = np.argsort(keys)
    ordered = keys[order]
    found = []
    for step in np.ndindex(*(3,) * axes):
        offset = int((np.array(step) - 1) @ scale)
        if offset <= 0:
            continue
        at = np.minimum(np.searchsorted(ordered, keys + offset), len(ordered) - 1)
        there = ordered[at] == keys + offset
        found.append(np.stack([np.flatnonzero(there), order[at[there]]], axis=1))
    found += [_chain(centres, axis) for axis in range(axes)]
    ends = np.unique(np.sort(np.concatenate(found), axis=1), axis=0)
    return ends, np.sqrt(((centres[ends[:, 0]] - centres[ends[:, 1]]) ** 2).sum(axis=1))


def _chain(centres: Floats, axis: int) -> Numbers:
    """Each point with the next along an axis, so that the graph is connected."""
    order = np.argsort(centres[:, axis], kind="stable")
    return np.stack([order[:-1], order[1:]], axis=1)


def _squared(one: Floats, other: Floats) -> Floats:
    products = (one**2).sum(axis=1)[:, None] + (other**2).sum(axis=1)[None, :] - 2 * one @ other.T
    return np.asarray(np.maximum(products, 0.0))
