"""The clients of the HTTP figures play whole turns, against both servers alike."""

from pathlib import Path

from bench.servers import bench_server, holdfast_server, run
from bench.web import play, prepare


def test_a_turn_is_played_to_its_end_on_the_real_server(tmp_path: Path) -> None:
    with holdfast_server(tmp_path / "home") as server:
        run(prepare(tmp_path, server))
        speed = run(play(server, 2, 2))

    assert (len(speed.firsts), speed.rate > 0, min(speed.firsts) > 0) == (4, True, True)


def test_a_turn_is_played_over_new_connections_with_a_cursor(tmp_path: Path) -> None:
    with holdfast_server(tmp_path / "home") as server:
        run(prepare(tmp_path, server))
        speed = run(play(server, 2, 2, keeps=False))

    assert (len(speed.firsts), speed.rate > 0) == (4, True)


def test_the_yardstick_is_played_by_the_same_clients(tmp_path: Path) -> None:
    with bench_server("bench.bare", str(tmp_path / "raw.db")) as server:
        speed = run(play(server, 2, 2))

    assert (len(speed.firsts), speed.rate > 0, min(speed.firsts) > 0) == (4, True, True)
