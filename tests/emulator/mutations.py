#!/usr/bin/env python3
"""Breaks forward_sm90, backward_sm80, backward_sm90 and decode in one way after the other, in a copy of the tree, and expects a test of the
emulator to fail.

tests/emulator/mutations.py [--folder FOLDER] [NAME ...]

Prints what each break was caught by, and "N passed, N failed": passed are those that were caught. --folder: a copy and
its build that the next run finds again. NAME: of a mutation, else all.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).resolve().parents[2]
FORWARD, BACKWARD = "emulated_quick_test", "emulated_quick_backward_test"
BACKWARD_SM90 = "emulated_backward_sm90_test"
DECODE = "emulated_quick_decode_test"
SECONDS = 300  # that a broken kernel may take


class Mutation(NamedTuple):
    """A break. found: stands in the file once, whatever the white space between its words. test: of target, that fails."""

    name: str
    file: str
    found: str
    instead: str
    test: str
    target: str = FORWARD


MUTATIONS = [
    Mutation(
        "k_wait",
        "forward_sm90.hpp",
        "k.wait_full(); wait_for_turn(); begin_scores(s[0]); v.wait_full();",
        "wait_for_turn(); begin_scores(s[0]); v.wait_full();",
        "Waits",
    ),
    Mutation(
        "v_wait",
        "forward_sm90.hpp",
        "v.wait_full(); begin_output(); give_turn();",
        "begin_output(); give_turn();",
        "Waits",
    ),
    Mutation(
        "turn_wait",
        "forward_sm90.hpp",
        "wait_for_turn(); begin_scores(s[0]); v.wait_full();",
        "begin_scores(s[0]); v.wait_full();",
        "ManyTiles",
    ),
    Mutation(
        "output_wait",
        "forward_sm90.hpp",
        "if (kOverlaps) end_output(has_output);",
        "if (kOverlaps && has_output) release(v);",
        "Waits",
    ),
    Mutation(
        "box_wait",
        "forward_sm90.hpp",
        "if (at.lane == 0) ptx::wait_boxes();",
        "",
        "ManyTiles",
    ),
    Mutation(
        "rescale",
        "forward_sm90.hpp",
        "[&](const float(&by)[1][2]) { scale_rows(o, by); }",
        "[&](const float(&)[1][2]) {}",
        "GrowingScores",
    ),
    Mutation(
        "sums",
        "scores_sm90.hpp",
        "is_done = __all_sync(kAllLanes, serves);",
        "is_done = __all_sync(kAllLanes, serves || true);",
        "GrowingScores",
    ),
    Mutation(
        "full_tiles",
        "key_walk_sm90.hpp",
        "at.computed().is_full(tile) ? at.computed().full_end : tile",
        "at.computed().is_full(tile) ? at.computed().full_end + 1 : tile",
        "Causal",
    ),
    Mutation(
        "alibi_side",
        "scores_sm90.hpp",
        "return position >= key + C.tile_kv - 1 ?",
        "return position >= key + C.tile_kv - 21 ?",
        "Alibi",
    ),
    Mutation(
        "tile_order",
        "tile_order.hpp",
        "return step <= nearest ? nearest - step : step;",
        "return step < nearest ? nearest - step : step;",
        "Alibi",
    ),
    Mutation(
        "dropout_keys",
        "scores_sm90.hpp",
        "(at.current().first_key(tile) + j * 8) / 16",
        "(at.current().first_key(tile) + j * 8 + 16) / 16",
        "Dropout",
    ),
    Mutation(
        "series_end",
        "softcap.hpp",
        "most <= score.end_of_series()",
        "most <= 40 * score.end_of_series()",
        "Softcap",
    ),
    Mutation(
        "unseen_values",
        "forward_sm90.hpp",
        "if (!scores.walk.is_full(tile)) clear_unseen_values(tile);",
        "",
        "UnseenValues",
    ),
    Mutation(
        "unseen_values_fence",
        "forward_sm90.hpp",
        "ptx::store_chunk(s_v + i * 16, {0, 0, 0, 0}); } ptx::fence_async(); meet();",
        "ptx::store_chunk(s_v + i * 16, {0, 0, 0, 0}); } meet();",
        "UnseenValues",
    ),
    Mutation(
        "unseen_values_meeting",
        "forward_sm90.hpp",
        "ptx::store_chunk(s_v + i * 16, {0, 0, 0, 0}); } ptx::fence_async(); meet();",
        "ptx::store_chunk(s_v + i * 16, {0, 0, 0, 0}); } ptx::fence_async();",
        "UnseenValues",
    ),
    Mutation(
        "queries_fence",
        "forward_sm90.hpp",
        "words.w ^ kSigns}); } ptx::fence_async(); meet();",
        "words.w ^ kSigns}); } meet();",
        "NegativeScale",
    ),
    Mutation(
        "queries_meeting",
        "forward_sm90.hpp",
        "words.w ^ kSigns}); } ptx::fence_async(); meet();",
        "words.w ^ kSigns}); } ptx::fence_async();",
        "NegativeScale",
    ),
    Mutation(
        "out_fence",
        "forward_sm90.hpp",
        "ptx::fence_async(); __syncwarp(); if (at.lane != 0) return;",
        "__syncwarp(); if (at.lane != 0) return;",
        "Waits",
    ),
    Mutation(
        "out_meeting",
        "forward_sm90.hpp",
        "if (kKeepsQ && !kHoldsQ) meet();",
        "",
        "Dropout",
    ),
    Mutation(
        "skipped_keys",
        "forward_sm90.hpp",
        "k.wait_full(); release(k); v.wait_full(); release(v);",
        "k.wait_full(); v.wait_full(); release(v);",
        "SkippedTiles",
    ),
    Mutation(
        "skipped_values",
        "forward_sm90.hpp",
        "k.wait_full(); release(k); v.wait_full(); release(v);",
        "k.wait_full(); release(k); v.wait_full();",
        "SkippedTiles",
    ),
    Mutation(
        "ended_store",
        "forward_sm90.hpp",
        "release_slot(q.previous().at(at.previous_row_group()));",
        "",
        "ManyTiles",
    ),
    Mutation(
        "stored_rows",
        "forward_sm90.hpp",
        "release_slot(q.previous().at(at.previous_row_group()));",
        "release_slot(q.previous().at(at.row_group));",
        "SkippedTiles",
    ),
    Mutation(
        "row_group",
        "lane_sm90.hpp",
        "row_group < kWarpgroups - 1 ? row_group + 1 : 0;",
        "row_group < kWarpgroups - 1 ? row_group + 1 : row_group;",
        "SkippedTiles",
    ),
    Mutation(
        "last_of_map",
        "key_walk_sm90.hpp",
        "return summary.is_last(at.row_group);",
        "return summary.is_last(0);",
        "SkippedTilesOfAMap",
    ),
    Mutation(
        "sm90_turns",
        "block_backward_sm90.hpp",
        "ptx::wait_boxes_written(); ptx::fence_memory();",
        "ptx::fence_memory();",
        "Turns",
        BACKWARD_SM90,
    ),
    Mutation(
        "sm90_meeting",
        "backward_sm90.hpp",
        "meet(); float dq",
        "float dq",
        "Turns",
        BACKWARD_SM90,
    ),
    Mutation(
        "sm90_d_scores_fence",
        "backward_sm90.hpp",
        "d_scores[step]); } ptx::fence_async();",
        "d_scores[step]); }",
        "Turns",
        BACKWARD_SM90,
    ),
    Mutation(
        "sm90_queries_wait",
        "backward_sm90.hpp",
        "queries.wait_full(); const QueryVisit visit = block.visit(queries);",
        "const QueryVisit visit = block.visit(queries);",
        "Turns",
        BACKWARD_SM90,
    ),
    Mutation(
        "sm90_dq_wait",
        "backward_sm90.hpp",
        "sums.wait_empty(); const int thread",
        "const int thread",
        "Turns",
        BACKWARD_SM90,
    ),
    Mutation(
        "sm90_dq_fence",
        "block_backward_sm90.hpp",
        "ptx::fence_async(s_dq(sums), kLayout.dq_bytes);",
        "",
        "Turns",
        BACKWARD_SM90,
    ),
    Mutation(
        "sm90_dq_read",
        "block_backward_sm90.hpp",
        "ptx::commit_boxes(); ptx::wait_boxes();",
        "ptx::commit_boxes();",
        "Turns",
        BACKWARD_SM90,
    ),
    Mutation(
        "sm90_idle_queries",
        "backward_sm90.hpp",
        "if (visit.is_there() && visit.has_idle) clear_idle_queries();",
        "",
        "Lengths",
        BACKWARD_SM90,
    ),
    Mutation(
        "sm90_unseen_keys",
        "backward_sm90.hpp",
        "wait_full(); clear_unseen_keys();",
        "wait_full();",
        "Lengths",
        BACKWARD_SM90,
    ),
    Mutation(
        "lost_add",
        "backward_sm80.hpp",
        "ptx::add_to_memory(at, dq[m][j][i]);",
        "if (thread != 77) ptx::add_to_memory(at, dq[m][j][i]);",
        "Turns",
        BACKWARD,
    ),
    Mutation("turn_fence", "backward_sm80.hpp", "ptx::fence_memory();", "", "Turns", BACKWARD),
    Mutation(
        "dq_turn_wait",
        "backward_sm80.hpp",
        "~portable::kHasSums, static_cast<uint32_t>(key_tile));",
        "~portable::kHasSums, 0u);",
        "Turns",
        BACKWARD,
    ),
    Mutation(
        "dq_first_store",
        "backward_sm80.hpp",
        "const bool is_first = in_order && ptx::load_word(block.s_word(0)) == 0;",
        "const bool is_first = in_order && block.key_tile == 0;",
        "Windows",
        BACKWARD,
    ),
    Mutation(
        "dq_last_turn",
        "backward_sm80.hpp",
        "__syncthreads(); const QueryVisit last = visited.visit(after(Visited::kSlots - 1)); "
        "if (takes_turns) block.end_turn(last); if constexpr (C.score",
        "const QueryVisit last = visited.visit(after(Visited::kSlots - 1)); "
        "if (takes_turns) block.end_turn(last); if constexpr (C.score",
        "Turns",
        BACKWARD,
    ),
    Mutation(
        "gradients_meeting",
        "backward_sm80.hpp",
        "__syncthreads();  // P and dX are there, and it is the block's turn",
        "",
        "Turns",
        BACKWARD,
    ),
    Mutation(
        "queries_landed",
        "backward_sm80.hpp",
        "__syncthreads();  // q and d_out have landed for every thread, and all are done with the last tile",
        "",
        "Turns",
        BACKWARD,
    ),
    Mutation(
        "visits_meeting",
        "backward_sm80.hpp",
        "visited.next(0); } __syncthreads();",
        "visited.next(0); }",
        "Turns",
        BACKWARD,
    ),
    Mutation(
        "dead_rows",
        "backward_sm80.hpp",
        "if (visit.has_idle) block.clear_idle_queries(stage);",
        "",
        "DeadRows",
        BACKWARD,
    ),
    Mutation(
        "unseen_keys",
        "backward_sm80.hpp",
        "if constexpr (Block::kHasMap) block.clear_unseen_keys();",
        "",
        "UnseenKeys",
        BACKWARD,
    ),
    Mutation(
        "slope_of_a_warp",
        "backward_sm80.hpp",
        "if (lane == 0) ptx::store_word(Block::s_word(1 + warp), __float_as_uint(slope)); __syncthreads();",
        "if (lane == 0) ptx::store_word(Block::s_word(1 + warp), __float_as_uint(slope));",
        "Slopes",
        BACKWARD,
    ),
    Mutation(
        "scale_row",
        "cache_rows.hpp",
        "const int32_t row = tile.row + (tile.is_run ? lane % portable::kDecodeTile : 0);",
        "const int32_t row = tile.row + (tile.is_run ? lane % portable::kDecodeTile : 0) / 2 * 2;",
        "Quantized",
        DECODE,
    ),
    Mutation(
        "power",
        "decode_softmax.hpp",
        "rows.power = power;",
        "",
        "Quantized",
        DECODE,
    ),
    Mutation(
        "widened_columns",
        "widened.hpp",
        "lane / 4 * kHalf + piece % kPiecesOfChunk * 2 + i / 2;",
        "lane / 4 + piece % kPiecesOfChunk * 2 + i / 2 * 8;",
        "Quantized",
        DECODE,
    ),
    Mutation(
        "lost_merge",
        "decode_states.hpp",
        "work.split.of) ? 1 : 0;",
        "work.split.of) ? 0 : 0;",
        "Merges",
        DECODE,
    ),
    Mutation(
        "early_merge",
        "decode_states.hpp",
        "+ rank, work.split.of) ? 1 : 0;",
        "+ rank, work.split.of - 1) ? 1 : 0;",
        "Merges",
        DECODE,
    ),
    Mutation(
        "split_slot",
        "decode_work.hpp",
        "split.slot_step = 1;",
        "split.slot_step = 0;",
        "Merges",
        DECODE,
    ),
    Mutation(
        "group_vote",
        "decode.hpp",
        "return __syncthreads_or(mine) != 0;",
        "return __any_sync(kAllLanes, mine);",
        "ManyRows",
        DECODE,
    ),
    Mutation(
        "warp_vote",
        "decode.hpp",
        "return Votes && __any_sync(kAllLanes, mine);",
        "return Votes && mine;",
        "FewRows",
        DECODE,
    ),
    Mutation(
        "keys_wait",
        "decode.hpp",
        "ptx::wait_copies<kLater>(); if constexpr (C.v_in_k) {",
        "if constexpr (C.v_in_k) {",
        "FewRows",
        DECODE,
    ),
    Mutation(
        "values_wait",
        "decode.hpp",
        "ptx::wait_copies<kLater>(); if (meet_and_vote<!Unified>(is_raised))",
        "if (meet_and_vote<!Unified>(is_raised))",
        "FewRows",
        DECODE,
    ),
    Mutation(
        "raised_meeting",
        "decode.hpp",
        "meet_and_vote<false>(false); if constexpr",
        "if constexpr",
        "ManyRows",
        DECODE,
    ),
    Mutation(
        "tops_meeting",
        "decode_softmax.hpp",
        "if constexpr (!C.warps_alone) __syncthreads();",
        "",
        "ManyRows",
        DECODE,
    ),
    Mutation(
        "raised_sum",
        "decode_softmax.hpp",
        "rows.sum[n][c] *= factor;",
        "",
        "FewRows",
        DECODE,
    ),
    Mutation(
        "staging_meeting",
        "decode_states.hpp",
        "__syncthreads();  // all warps are done with values, whose memory the rows take",
        "",
        "ManyRows",
        DECODE,
    ),
    Mutation(
        "queries_meeting_decode",
        "decode.hpp",
        "copy_later_queries(work); __syncthreads();",
        "copy_later_queries(work);",
        "ManyRows",
        DECODE,
    ),
    Mutation(
        "step_meeting",
        "decode.hpp",
        "__syncthreads(); load_keys(idx + C.depth, stage == 0",
        "load_keys(idx + C.depth, stage == 0",
        "ValuesInKeys",
        DECODE,
    ),
    Mutation(
        "stage_in_use",
        "decode.hpp",
        "stage == 0 ? C.depth : stage - 1",
        "stage",
        "ValuesInKeys",
        DECODE,
    ),
    Mutation(
        "published_max",
        "decode.hpp",
        "meet_and_vote<false>(false); if constexpr (C.v_in_k) publish_max(rows);",
        "meet_and_vote<false>(false);",
        "ValuesInKeys",
        DECODE,
    ),
    Mutation(
        "staged_states",
        "decode.hpp",
        "if (is_cluster) ptx::sync_cluster();  // all have staged their states",
        "",
        "ValuesInKeys",
        DECODE,
    ),
    Mutation(
        "read_states",
        "decode.hpp",
        "if (is_cluster) ptx::sync_cluster();  // the others have read this block's state",
        "",
        "ValuesInKeys",
        DECODE,
    ),
    Mutation(
        "full_keys",
        "block_decode.hpp",
        "work.full = {last.begin, first.end};",
        "work.full = {last.begin, first.end + 1};",
        "Causal",
        DECODE,
    ),
    Mutation(
        "hidden_drafts",
        "cache_rows.hpp",
        "is_seen || sees(rows_[row], key, p_.keep_first, drafts_)",
        "is_seen || sees(rows_[row], key, p_.keep_first, Drafts())",
        "Drafts",
        DECODE,
    ),
    Mutation(
        "drafts_in_a_run",
        "cache_rows.hpp",
        "of_first_{rows[0].begin, min(rows[0].end, drafts.begin)},",
        "of_first_{rows[0].begin, rows[0].end},",
        "Drafts",
        DECODE,
    ),
    Mutation(
        "cluster_wait",
        "decode.hpp",
        "ptx::wait_for_cluster(); send_state();",
        "send_state();",
        "LongSchedules",
        DECODE,
    ),
    Mutation(
        "sent_wait",
        "decode.hpp",
        "ptx::wait_for_sent(barrier(), phase);",
        "",
        "Clusters",
        DECODE,
    ),
    Mutation(
        "sent_slice",
        "decode_states.hpp",
        "received(rank, quad - to * slice_quads())",
        "received(to, quad - to * slice_quads())",
        "Clusters",
        DECODE,
    ),
    Mutation(
        "cluster_phase",
        "decode.hpp",
        "phase ^= 1;",
        "",
        "LongSchedules",
        DECODE,
    ),
    Mutation(
        "schedule_slot",
        "decode_work.hpp",
        "2 * first_piece + (first_piece * piece_rounds_ < from_ ? 1 : 0);",
        "2 * first_piece;",
        "Schedules",
        DECODE,
    ),
    Mutation(
        "schedule_piece",
        "decode_schedule.hpp",
        "(all + p.pieces - 1) / p.pieces",
        "all / p.pieces",
        "Schedules",
        DECODE,
    ),
    Mutation(
        "schedule_first",
        "decode_schedule.hpp",
        "(at + piece - 1) / piece;",
        "at / piece + 1;",
        "Schedules",
        DECODE,
    ),
    Mutation(
        "schedule_counters",
        "decode_schedule.hpp",
        "p.arrived[i] = 0;",
        ";",
        "Schedules",
        DECODE,
    ),
    Mutation(
        "unified_above",
        "decode.hpp",
        "__syncthreads_or(is_above || needs_maximum(work))",
        "__syncthreads_or(needs_maximum(work))",
        "UnifiedMax",
        DECODE,
    ),
    Mutation(
        "unified_below",
        "decode.hpp",
        "__syncthreads_or(is_above || needs_maximum(work))",
        "__syncthreads_or(is_above)",
        "UnifiedMax",
        DECODE,
    ),
]


def run(*command: str, cwd: Path) -> str:
    """What a command prints. Raises SystemExit with it if the command fails."""
    done = subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{done.stdout}\n{' '.join(command)}: exit status {done.returncode}")
    return done.stdout


def copy_tree(to: Path) -> None:
    """Copies what git knows of the tree; files that are the same stay as they are, those that are gone go."""
    to.mkdir(parents=True, exist_ok=True)
    names = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=SOURCE).split("\0")
    for folder in ("src", "tests"):
        for path in (to / folder).rglob("*"):
            if path.is_file() and str(path.relative_to(to)) not in names:
                path.unlink()
    for name in names:
        source, copy = SOURCE / name, to / name
        if not source.is_file() or (copy.is_file() and copy.read_bytes() == source.read_bytes()):
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(source.read_bytes())
        copy.chmod(source.stat().st_mode)


def apply(mutation: Mutation, tree: Path) -> tuple[Path, str]:
    """Changes the file in the tree. Returns its path and what it held. Raises SystemExit if the words are not there."""
    files = list((tree / "src/cuda/device").rglob(mutation.file))
    if len(files) != 1:
        raise SystemExit(f"{mutation.name}: {len(files)} files are named {mutation.file}")
    held = files[0].read_text()
    words = re.compile(r"\s+".join(re.escape(word) for word in mutation.found.split()))
    if len(words.findall(held)) != 1:
        raise SystemExit(f"{mutation.name}: stands {len(words.findall(held))} times in {files[0]}: {mutation.found}")
    files[0].write_text(words.sub(lambda _: mutation.instead, held))
    return files[0], held


def build(tree: Path, target: str) -> Path:
    """The binary of tests."""
    folder = tree / "build"
    if not (folder / "build.ninja").is_file():
        options = ["-DCMAKE_BUILD_TYPE=Release", "-DTESSELLA_BUILD_TESTS=ON", "-DTESSELLA_EMBED_KERNELS=OFF"]
        run("cmake", "-S", str(tree), "-B", str(folder), "-G", "Ninja", *options, cwd=tree)
    run("cmake", "--build", str(folder), "--target", target, cwd=tree)
    return next(path for path in folder.rglob(target) if path.is_file())


def failure(binary: Path, tests: str) -> str:
    """What the tests say first, "" if they pass."""
    command = [str(binary), f"--gtest_filter={tests}", "--gtest_fail_fast", "--gtest_brief=1"]
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"no end in {SECONDS} s"
    if done.returncode == 0:
        return ""
    said = re.search(r'Which is: "(.*)|^  "(.*)', done.stdout, re.MULTILINE)
    return (said.group(1) or said.group(2)).rstrip('"') if said else f"exit status {done.returncode}"


def main() -> int:
    """Runs the mutations of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    args = parser.parse_args()
    unknown = set(args.names) - {mutation.name for mutation in MUTATIONS}
    if unknown:
        parser.error(f"no mutation is named {' or '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory() as temporary:
        tree = args.folder.resolve() if args.folder else Path(temporary)
        copy_tree(tree)
        mutations = [mutation for mutation in MUTATIONS if not args.names or mutation.name in args.names]
        for target in sorted({mutation.target for mutation in mutations}):
            if said := failure(build(tree, target), "*"):
                raise SystemExit(f"{target} fails before anything is broken: {said}")
        passed = failed = 0
        for mutation in mutations:
            start = time.monotonic()
            path, held = apply(mutation, tree)
            try:
                said = failure(build(tree, mutation.target), f"*.{mutation.test}")
            finally:
                path.write_text(held)
            passed += said != ""
            failed += said == ""
            seconds = round(time.monotonic() - start)
            print(f"{mutation.name:22} {mutation.test:14} {seconds:4} s  {said or 'NOT CAUGHT'}"[:160], flush=True)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
