"""The C API by ctypes: as much of tessella.h as the benchmarks need."""
import ctypes as c
import math

DTYPES = {"f64": 1, "f32": 2, "bf16": 3, "f16": 4, "bool": 5, "i32": 6, "i64": 7}


class Tensor(c.Structure):
    _fields_ = [("data", c.c_void_p), ("dtype", c.c_int32), ("ndim", c.c_int32), ("device_type", c.c_int32),
                ("device_id", c.c_int32), ("shape", c.c_int64 * 8), ("strides", c.c_int64 * 8),
                ("flags", c.c_uint64), ("reserved", c.c_uint64 * 3)]


class Args(c.Structure):
    _fields_ = [("struct_size", c.c_size_t)] + [(name, c.POINTER(Tensor)) for name in (
        "q", "k", "v", "out", "lse", "seqlens_q", "seqlens_kv", "cu_seqlens_q", "cu_seqlens_kv", "leftpad_kv", "bias",
        "alibi_slopes", "sink", "dense_mask", "block_map", "document_ids_q", "document_ids_kv", "prefix_lengths",
        "seed", "offset", "score_args")] + [("num_score_args", c.c_int32)]


class Options(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("scale", c.c_float), ("softcap", c.c_float), ("dropout", c.c_float),
                ("causal_top_left", c.c_int32), ("window_left", c.c_int64), ("window_right", c.c_int64),
                ("chunk", c.c_int64), ("keep_first", c.c_int64), ("block_map_q", c.c_int64),
                ("block_map_kv", c.c_int64), ("seed", c.c_uint64), ("offset", c.c_uint64), ("out_dtype", c.c_int32),
                ("num_splits", c.c_int32), ("num_sms", c.c_int32), ("num_threads", c.c_int32),
                ("deterministic", c.c_int32), ("batch_invariant", c.c_int32), ("check_device_values", c.c_int32),
                ("kernel", c.c_char_p), ("max_seqlen_q", c.c_int64), ("max_seqlen_kv", c.c_int64),
                ("score", c.c_char_p), ("score_gradient", c.c_char_p), ("keep", c.c_char_p)]
    # a shorter struct of an older program: the rest is default


class CheckReport(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("rows", c.c_int64), ("max_error", c.c_double),
                ("plain_error", c.c_double), ("tolerance", c.c_double), ("passed", c.c_int32),
                ("worst_index", c.c_int64 * 4), ("worst_got", c.c_double), ("worst_expected", c.c_double)]


class KernelInfo(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("name", c.c_char_p), ("summary", c.c_char_p), ("dtypes", c.c_char_p),
                ("features", c.c_char_p), ("unavailable", c.c_char_p), ("max_head_dim", c.c_int64),
                ("automatic", c.c_char_p)]


class Error(RuntimeError):
    pass


class Call:
    """One forward call, its structs built once, so that repeating it costs no Python beyond the call itself.

    tensors: (pointer, dtype, shape, strides) of q, k, v and out. named: the same of other arguments, by name; options:
    fields of tessella_attention_options by name, texts as bytes; score_args: a list of such tensors."""

    def __init__(self, library, tensors, causal, num_threads, kernel, stream=None, named=None, score_args=(), **options):
        self.library = library
        self.stream = c.c_void_p(stream)
        self.dtype = tensors[0][1]
        self.tensors = [self.tensor(*tensor) for tensor in tensors]
        self.args = Args(c.sizeof(Args), *[c.pointer(tensor) for tensor in self.tensors])
        for name, tensor in (named or {}).items():
            self.tensors.append(self.tensor(*tensor))
            setattr(self.args, name, c.pointer(self.tensors[-1]))
        if score_args:
            self.score_args = (Tensor * len(score_args))(*[self.tensor(*tensor) for tensor in score_args])
            self.args.score_args, self.args.num_score_args = self.score_args, len(score_args)
        self.options = Options(struct_size=c.sizeof(Options), scale=math.nan, window_left=-1,
                               window_right=0 if causal else -1, num_threads=num_threads,
                               kernel=kernel.encode() if kernel else None, **options)
        self.args_ref, self.options_ref = c.byref(self.args), c.byref(self.options)

    @staticmethod
    def tensor(data, dtype, shape, strides):
        return Tensor(data=data, dtype=DTYPES[dtype], ndim=len(shape), shape=(c.c_int64 * 8)(*shape),
                      strides=(c.c_int64 * 8)(*strides))

    def run(self):
        self.library.require(self.library.c.tessella_forward(self.args_ref, self.options_ref, self.stream))

    def plan(self):
        """Name of the kernel and bytes of workspace."""
        plan, state, scratch = c.c_void_p(), c.c_size_t(), c.c_size_t()
        self.library.require(self.library.c.tessella_plan_forward(self.args_ref, self.options_ref, c.byref(plan)))
        name = self.library.c.tessella_plan_kernel(plan).decode()
        status = self.library.c.tessella_plan_workspace(plan, c.byref(state), c.byref(scratch))
        self.library.c.tessella_plan_free(plan)
        self.library.require(status)
        return name, state.value + scratch.value

    def check(self, num_rows, seed):
        report = CheckReport(struct_size=c.sizeof(CheckReport))
        self.library.require(self.library.c.tessella_check_forward(self.args_ref, self.options_ref,
                                                                   c.c_int64(num_rows), c.c_uint64(seed),
                                                                   c.byref(report)))
        return {"passed": bool(report.passed), "rows": report.rows, "max_error": report.max_error,
                "plain_error": report.plain_error, "tolerance": report.tolerance}

    def first_kernel(self, accept):
        """The best kernel chosen unnamed for calls like this one that `accept` says yes to by name; None if there is none."""
        reason = c.c_char_p()
        for name, kernel_idx, dtypes in self.library.kernels():
            if self.dtype not in dtypes:
                continue
            self.options.kernel = None
            status = self.library.c.tessella_kernel_refusal(kernel_idx, self.args_ref, self.options_ref,
                                                            c.byref(reason))
            if accept(name) and status == 0 and not reason.value:
                return name
        return None


class Library:
    def __init__(self, path):
        self.c = c.CDLL(path)
        for name in ("last_error", "info", "plan_kernel"):
            getattr(self.c, "tessella_" + name).restype = c.c_char_p
        self.c.tessella_plan_kernel.argtypes = [c.c_void_p]
        self.c.tessella_plan_free.argtypes = [c.c_void_p]
        self.c.tessella_plan_free.restype = None
        self.c.tessella_plan_workspace.argtypes = [c.c_void_p, c.c_void_p, c.c_void_p]

    def require(self, status):
        if status != 0:
            raise Error(self.c.tessella_last_error().decode())

    def info(self):
        return self.c.tessella_info().decode()

    def kernels(self):
        """(name, index, dtypes it may be chosen for) of the kernels for this machine that need no naming, best first."""
        found = []
        for kernel_idx in range(self.c.tessella_kernel_count()):
            info = KernelInfo(struct_size=c.sizeof(KernelInfo))
            self.require(self.c.tessella_kernel_describe(kernel_idx, c.byref(info)))
            if info.automatic and not info.unavailable:
                found.append((info.name.decode(), kernel_idx, info.automatic.decode().split()))
        return found
