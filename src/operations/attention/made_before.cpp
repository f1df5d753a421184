#include "operations/attention/made_before.hpp"

#include "core/error.hpp"
#include "core/message.hpp"

namespace tessella::core {
namespace {

class MadeBefore {
 public:
  MadeBefore(const tessella_forward_args& args, const char* function, Memory memory, TensorReader& reader,
             AttentionArguments& p)
      : args_(args), function_(function), memory_(memory), reader_(reader), p_(p) {}

  // Until the next SOVERSION a schedule beside a mask that has a map is that map, as it was before maps had an argument
  // of their own.
  void read() {
    const bool has_mapped_mask = p_.features.has_any(kMappedMasks);
    if (args_.mask_map != nullptr) {
      if (!has_mapped_mask) {
        invalid(
            message(function_, ": mask_map is given, expected it beside a mask that has one: ", names(kMappedMasks)));
      }
      if (args_.schedule != nullptr) {
        invalid(message(function_, ": schedule is given, expected it absent beside mask_map"));
      }
      return mask_map("mask_map", *args_.mask_map);
    }
    if (args_.schedule == nullptr) return;
    if (has_mapped_mask) return mask_map("schedule", *args_.schedule);
    schedule();
  }

 private:
  // Only its making writes it.
  void mask_map(const char* name, const tessella_tensor& tensor) {
    p_.features |= Feature::mask_map;
    const Bytes map = bytes(name, tensor, memory_ == Memory::made);
    p_.mask_map = map.data;
    p_.mask_map_bytes = map.count;
  }

  // Runs count in it.
  void schedule() {
    p_.features |= Feature::schedule;
    if (p_.batch_invariant) {
      invalid(message(function_, ": schedule is given, expected it absent beside batch_invariant, which splits keys ",
                      "at multiples of a constant"));
    }
    if (p_.num_splits != 0) {
      invalid(message(function_, ": num_splits is ", p_.num_splits,
                      ", expected 0 beside schedule, which says where keys are split"));
    }
    const bool is_written = memory_ == Memory::made || memory_ == Memory::written;
    const Bytes schedule = bytes("schedule", *args_.schedule, is_written);
    p_.schedule = const_cast<void*>(schedule.data);
    p_.schedule_bytes = schedule.count;
  }

  Bytes bytes(const char* name, const tessella_tensor& tensor, bool is_written) {
    if (is_written && (tensor.flags & TESSELLA_READ_ONLY) != 0) {
      invalid(message(function_, ": ", name, " is read-only, expected memory that may be written"));
    }
    return reader_.words(name, tensor, memory_ != Memory::none);
  }

  const tessella_forward_args& args_;
  const char* function_;
  Memory memory_;
  TensorReader& reader_;
  AttentionArguments& p_;
};

}  // namespace

void read_made_before(const tessella_forward_args& args, const char* function, Memory memory, TensorReader& reader,
                      AttentionArguments& arguments) {
  MadeBefore(args, function, memory, reader, arguments).read();
}

}  // namespace tessella::core
