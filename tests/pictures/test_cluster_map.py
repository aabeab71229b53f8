"""Maps: every region has its place, every link its figures."""

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from jaxpipe import topo
from jaxpipe.pictures.cluster_map import (
    draw_map,
    places_of,
    scaled_positions,
    site_links,
    spanning_links,
)
from jaxpipe.topo.catalogue import site_positions


def shown(path: Path) -> str:
    return "\n".join(re.findall("<!-- (.*?) -->", path.read_text(), re.DOTALL))


def test_every_region_and_every_link_of_a_small_cluster_is_named(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw_map(topo.load("fluidstack-3region"), tmp_path / "map.svg")
    text = shown(tmp_path / "map.svg")
    for words in ("east", "middle", "west", "0.15 / 1.17 Gbit/s", "3.1 / 3.04 Gbit/s", "21.8 ms"):
        assert words in text
    assert "distances follow latency" in text


def test_of_many_links_those_that_join_all_regions_are_named(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    cluster = topo.load("case5-worldwide")
    draw_map(cluster, tmp_path / "map.svg")
    text = shown(tmp_path / "map.svg")
    assert text.count("Gbit/s") == 7
    assert "positions on earth" in text
    assert "28 links" in text
    assert "0.335" not in text  # seoul to ireland, the slowest


@pytest.mark.parametrize("name", ["laptop", "two-region", "aws", "homogeneous:hosts=3"])
def test_any_cluster_has_a_map(tmp_path: Path, name: str) -> None:
    pytest.importorskip("matplotlib")
    draw_map(topo.load(name), tmp_path / "map.png")
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")


def test_links_are_the_worst_of_their_devices() -> None:
    cluster = topo.load("case3-universities")
    (link,) = site_links(cluster)
    assert link.latency_s == (0.011, 0.011)
    assert link.bytes_per_s == (1.12e9 / 8, 1.12e9 / 8)


def test_a_spanning_tree_joins_all_and_no_faster_link_would() -> None:
    links = site_links(topo.load("aws"))
    tree = spanning_links(links)
    joined = {region for link in tree for region in link.between}
    assert len(tree) == 9
    assert joined == set(range(10))
    slowest = min(link.slowest_bytes_per_s for link in tree)
    # Without the slowest of them, faster links alone leave a region apart.
    faster = [link for link in links if link.slowest_bytes_per_s > slowest]
    assert len(spanning_links(tuple(faster))) < 9


def test_distances_follow_latencies_where_a_plane_can_hold_them() -> None:
    points = np.array([[0.0, 0.0], [3.0, 0.0], [3.0, 4.0], [7.0, 1.0]])
    latency_s = np.linalg.norm(points[:, None] - points[None], axis=2)
    found = scaled_positions(latency_s)
    again = np.linalg.norm(found[:, None] - found[None], axis=2)
    assert again == pytest.approx(latency_s)


def test_no_region_hides_another() -> None:
    for name in topo.names():
        points = places_of(topo.load(name)).points
        for one, other in combinations(points, 2):
            assert np.linalg.norm(one - other) > 0.1, name


def test_the_map_is_cut_in_the_widest_ocean() -> None:
    regions = topo.load("case5-worldwide").regions
    east = dict(zip(regions, places_of(topo.load("case5-worldwide")).points[:, 0], strict=True))
    assert sorted(east, key=lambda region: east[region])[:3] == ["seoul", "tokyo", "oregon"]


def test_positions_are_on_earth_and_of_regions_of_the_catalogue() -> None:
    known = {region for name in topo.names() for region in topo.load(name).regions}
    assert set(site_positions()) <= known
    for latitude, longitude in site_positions().values():
        assert -90 < latitude < 90
        assert -180 < longitude < 180
