"""Array files byte by byte with the standard library, so that wrong ones are wrong in one way only."""

import io
import itertools
import json
import math
import pathlib
import random
import struct
import warnings
import zipfile
import zlib

SHAPE = (1, 8, 2, 4)


def floats(seed, shape=SHAPE):
    generator = random.Random(seed)
    return struct.pack(f"<{math.prod(shape)}f", *(generator.gauss(0, 1) for _ in range(math.prod(shape))))


def npy(data, shape=SHAPE, descr="<f4", fortran=False, version=1, magic=b"\x93NUMPY"):
    header = f"{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}".encode()
    header += b" " * (63 - (len(header) + 10) % 64) + b"\n"
    return magic + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(header)) + header + data


def transposed(data, shape, size):
    """Row-major elements in column-major order."""
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    index = lambda at: sum(x * stride for x, stride in zip(at, strides))
    return b"".join(data[(i := index(at[::-1])) * size : (i + 1) * size]
                    for at in itertools.product(*(range(extent) for extent in shape[::-1])))


def npz(arrays, compression=zipfile.ZIP_STORED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, data in arrays.items():
            archive.writestr(f"{name}.npy", data)
    return file.getvalue()


def deflated_zeros(head, megabytes):
    """`head` and so many MB of zeros, deflated, without the work: a block that stands alone is repeated."""
    deflate = zlib.compressobj(wbits=-15)
    start = deflate.compress(head) + deflate.flush(zlib.Z_FULL_FLUSH)
    block = deflate.compress(bytes(1_000_000)) + deflate.flush(zlib.Z_FULL_FLUSH)
    return start + block * megabytes + deflate.flush()


def zip_of(entries):
    """An archive of (name, deflated bytes, size claimed); its checksums are wrong, which only shows at an entry's end."""
    file, directory = b"", b""
    for name, data, size in entries:
        common = struct.pack("<HHHHHIIIHH", 20, 0, 8, 0, 33, 0, len(data), size, len(name), 0)
        directory += b"PK\1\2" + struct.pack("<H", 20) + common + struct.pack("<HHHII", 0, 0, 0, 0, len(file)) + name.encode()
        file += b"PK\3\4" + common + name.encode() + data
    end = struct.pack("<HHHHIIH", 0, 0, len(entries), len(entries), len(directory), len(file), 0)
    return file + directory + b"PK\5\6" + end


def add_to_zip(archive, name, data):
    """A zip archive with one more .npy file, of any name."""
    file = io.BytesIO(archive)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a name that is there already
        with zipfile.ZipFile(file, "a") as zipped:
            zipped.writestr(f"{name}.npy", data)
    return file.getvalue()


def safetensors(header, data):
    header_bytes = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(header_bytes)) + header_bytes + data


def entry(begin, end, shape=SHAPE, dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def read_npy(path):
    data = pathlib.Path(path).read_bytes()
    length = struct.unpack("<H", data[8:10])[0]
    header = eval(data[10 : 10 + length])  # the test's own output
    return header, data[10 + length :]
