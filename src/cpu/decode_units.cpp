#include "cpu/decode_units.hpp"

#include <bit>
#include <new>

#include "cpu/memory.hpp"
#include "cpu/vector/forward_vector.hpp"
#include "cpu/work_tiles.hpp"

namespace tessella::cpu {
namespace {

// Pieces for each thread if all had the same size. With this many the last thread ends soon after the others.
constexpr int64_t kPiecesPerThread = 48;

// Reading a key takes as long as about eight rows need to compute with it.
int64_t cost_of(const SeenKeys& seen, int64_t rows) {
  constexpr int64_t kRead = 8;
  const int64_t keys = seen.keep_end + std::max<int64_t>(seen.end - std::max(seen.begin, seen.keep_end), 0);
  return keys * (rows + kRead);
}

}  // namespace

int64_t split_keys(const core::AttentionShape& shape) {
  constexpr int64_t kBytes = 512 << 10;
  const core::DType dtype = shape.operands[core::Name::k].dtype;
  const auto keys = static_cast<uint64_t>(kBytes / core::bytes_of(dtype, shape.head_dim_qk + shape.head_dim_v));
  return std::clamp<int64_t>(static_cast<int64_t>(std::bit_floor(keys)), kLeastSplit, kLongestSplit);
}

int64_t decode_block_rows(const core::AttentionShape& shape) {
  return std::clamp<int64_t>(shape.seqlen_q * shape.group(), 1, kDecodeQueryTiles * kQueryTileRows);
}

int64_t decode_unit_rows(const core::AttentionShape& shape) {
  return std::min<int64_t>(decode_block_rows(shape) * shape.heads_kv, kDecodeQueryTiles * kQueryTileRows);
}

int64_t decode_unit_query_tiles(const core::AttentionShape& shape) {
  return std::clamp<int64_t>(shape.heads_kv, kDecodeQueryTiles, kDecodeHeads);
}

SeenKeys seen_keys(const core::AttentionArguments& arguments, const core::Sequence& sequence, int64_t row_begin,
                   int64_t row_end) {
  const int64_t group = arguments.group();
  const int64_t end = sequence.band.end((row_end - 1) / group);
  return {std::min(arguments.keep_first, end), sequence.band.begin(row_begin / group), end};
}

Subtrees subtrees(const SeenKeys& seen, int64_t split_keys, int level) {
  const int64_t keys = split_keys << level;
  const int64_t keep_end = ceil_div(seen.keep_end, keys);
  const int64_t first = std::max(seen.begin / keys, keep_end);
  return {keep_end, first, std::max(seen.begin < seen.end ? ceil_div(seen.end, keys) : 0, first)};
}

int64_t DecodeUnits::most_units(const core::AttentionShape& shape) {
  // Each sequence has at most one block that is not full; a packed tensor has rows past its sequences.
  return (packed_rows(shape) / kQueryTileRows + shape.batch + 1) * shape.heads_kv;
}

int64_t DecodeUnits::most_slots(const core::AttentionShape& shape, int num_threads) {
  if (num_threads == 1) return 0;
  const int64_t splits = ceil_div(shape.seqlen_kv, split_keys(shape));
  return std::min(kPiecesPerThread * num_threads, most_units(shape) * splits);
}

int64_t DecodeUnits::scratch_bytes(const core::AttentionShape& shape) {
  return most_units(shape) / shape.heads_kv * static_cast<int64_t>(sizeof(Block));
}

DecodeUnits::DecodeUnits(const core::AttentionArguments& arguments, int num_threads, void* scratch)
    : arguments_(&arguments), split_keys_(split_keys(arguments)), blocks_(static_cast<Block*>(scratch)) {
  const int64_t group = arguments.group();
  const int64_t block_rows = decode_block_rows(arguments);
  if (arguments.cu_seqlens_q) {
    add_blocks(-1, arguments.cu_seqlens_q.at(0, arguments.batch) * group, arguments.total_q * group,
               kDecodeQueryTiles * kQueryTileRows);
  }
  for (int64_t b = 0; b < arguments.batch; ++b) {
    add_blocks(b, 0, core::sequence(arguments, b).slots_q * group, block_rows);
  }
  std::sort(blocks_, blocks_ + num_blocks_, [](const Block& a, const Block& b) {
    if (a.cost != b.cost) return a.cost > b.cost;
    return a.batch_idx != b.batch_idx ? a.batch_idx < b.batch_idx : a.row_begin < b.row_begin;
  });
  double total = 0;
  for (int64_t idx = 0; idx < num_blocks_; ++idx) total += static_cast<double>(blocks_[idx].cost * arguments.heads_kv);
  constexpr double kAlone = 6e5;  // about 10 microseconds
  const double work = total * static_cast<double>(arguments.head_dim_qk + arguments.head_dim_v);
  num_threads_ = work < kAlone ? 1 : num_threads;
  unit_heads_ = heads_of_unit(block_rows);
  block_units_ = arguments.heads_kv / unit_heads_;
  int64_t slots = 0;
  for (int64_t idx = 0; idx < num_blocks_; ++idx) {
    Block& block = blocks_[idx];
    const double fraction = total > 0 ? static_cast<double>(block.cost * unit_heads_) / total : 0;
    cut(block, fraction * static_cast<double>(kPiecesPerThread * num_threads_));
    block.first_piece = num_pieces_;
    block.first_slot = slots;
    num_pieces_ += block.num_pieces * block_units_;
    if (block.num_pieces > 1) slots += block.num_pieces * block_units_;
  }
}

void DecodeUnits::add_blocks(int64_t batch_idx, int64_t row_begin, int64_t row_end, int64_t block_rows) {
  if (row_begin >= row_end) return;
  core::Sequence sequence;
  if (batch_idx >= 0) sequence = core::sequence(*arguments_, batch_idx);
  for (int64_t row = row_begin; row < row_end; row += block_rows) {
    const int64_t end = std::min(row + block_rows, row_end);
    const int64_t rows = std::min(end, sequence.len_q * arguments_->group()) - row;
    Block block{};
    block.row_begin = row;
    block.batch_idx = static_cast<int32_t>(batch_idx);
    block.num_rows = static_cast<int32_t>(end - row);
    if (rows > 0) block.seen = seen_keys(*arguments_, sequence, row, row + rows);
    block.cost = cost_of(block.seen, std::max<int64_t>(rows, 0));
    new (blocks_ + num_blocks_++) Block(block);
  }
}

// The number of heads of a unit: the most that leave enough pieces for the threads, if a head's rows are further apart
// than heads; otherwise one.
int64_t DecodeUnits::heads_of_unit(int64_t block_rows) const {
  const core::AttentionArguments& p = *arguments_;
  if (block_rows > kQueryTileRows || p.k().row_stride <= p.k().head_stride) return 1;
  int64_t splits = 0;
  for (int64_t idx = 0; idx < num_blocks_; ++idx) splits += subtrees(blocks_[idx].seen, split_keys_, 0).count();
  int64_t heads = std::min<int64_t>({p.heads_kv, kDecodeHeads, decode_unit_rows(p) / block_rows});
  constexpr int64_t kLeastPieces = 4;  // of a thread
  const auto is_few = [&] { return splits * (p.heads_kv / heads) < kLeastPieces * num_threads_; };
  while (p.heads_kv % heads != 0 || (heads > 1 && num_threads_ > 1 && is_few())) --heads;
  return heads;
}

// A block that is a small fraction of all work stays whole. There are at most most_pieces pieces, so slots are few.
void DecodeUnits::cut(Block& block, double most_pieces) const {
  block.level = 0;
  block.num_pieces = 1;
  const auto bound = [&] {  // of their number
    return static_cast<double>(subtrees(block.seen, split_keys_, block.level).count());
  };
  if (num_threads_ > 1 && most_pieces >= 5) {
    while (bound() > most_pieces) ++block.level;
    block.num_pieces = std::max<int64_t>(subtrees(block.seen, split_keys_, block.level).count(), 1);
  }
  if (block.num_pieces > 1) return;
  while (split_keys_ << block.level < std::max(block.seen.end, block.seen.keep_end)) ++block.level;
}

DecodePiece DecodeUnits::piece(int64_t idx) const {
  const Block* block = std::upper_bound(blocks_, blocks_ + num_blocks_, idx,
                                        [](int64_t piece, const Block& b) { return piece < b.first_piece; }) -
                       1;
  const int64_t of_block = idx - block->first_piece;
  const Subtrees trees = subtrees(block->seen, split_keys_, block->level);
  const int64_t tree = trees.count() == 0 ? 0 : trees.at(of_block % block->num_pieces);
  const int64_t unit = of_block / block->num_pieces;
  return {.batch_idx = block->batch_idx,
          .kv_head = unit * unit_heads_,
          .num_heads = unit_heads_,
          .row_begin = block->row_begin,
          .num_rows = block->num_rows,
          .first_split = tree << block->level,
          .end_split = (tree + 1) << block->level,
          .level = block->level,
          .num_pieces = block->num_pieces,
          .unit = (block - blocks_) * block_units_ + unit,
          .slot = block->first_slot + of_block,
          .first_slot = block->first_slot + unit * block->num_pieces};
}

}  // namespace tessella::cpu
