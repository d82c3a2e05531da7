"""A second device that computes on the CPU: code that mixes devices fails as it would on a GPU.

torch supports devices that are written in Python. Each tensor of this one wraps one of the CPU; every
operation checks that all of its tensors are on the device and runs on the wrapped ones.
"""

from contextlib import contextmanager
from types import SimpleNamespace

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "ghost"
COPY_OPERATIONS = {"aten::copy_", "aten::_to_copy", "aten::_foreach_copy_"}  # operations between devices
INDEX_OPERATIONS = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
FACTORIES = {torch.tensor, torch.as_tensor, torch.from_numpy}  # these bypass the dispatcher


BACKEND = SimpleNamespace(  # the interface of a device module; random numbers come from the CPU's generator
    get_amp_supported_dtype=lambda: [torch.bfloat16, torch.float16],
    is_available=lambda: True,
    is_initialized=lambda: True,
    _is_in_bad_fork=lambda: False,
    manual_seed_all=lambda seed: None,
    device_count=lambda: 1,
    current_device=lambda: 0,
)
_setup_privateuseone_for_python_backend(NAME, BACKEND)
DEVICE = torch.device(NAME, 0)


class Ghost(Tensor):
    raw: Tensor

    @staticmethod
    def __new__(cls, raw):
        rest = {"storage_offset": raw.storage_offset(), "dtype": raw.dtype, "device": DEVICE}
        return Tensor._make_wrapper_subclass(cls, raw.shape, strides=raw.stride(), **rest)

    def __init__(self, raw):
        self.raw = raw

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {})

    def __repr__(self):
        return f"Ghost({self.raw})"

    def tolist(self):
        return self.raw.tolist()

    def numpy(self):
        raise TypeError("can't convert a ghost tensor to numpy; copy it to the CPU first")

    def data_ptr(self):
        return self.raw.data_ptr()

    def is_set_to(self, other):
        return isinstance(other, Ghost) and self.raw.is_set_to(other.raw)


def _of(device):
    return device is not None and torch.device(device).type == NAME


def _run(func, args, kwargs):
    ghosts = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Ghost)]
    if ghosts and func._schema.name not in COPY_OPERATIONS:
        is_index = func._schema.name in INDEX_OPERATIONS  # indices may be on the CPU
        for x in tree_leaves(((args[0], args[2:]) if is_index else args, kwargs)):
            if isinstance(x, Tensor) and not isinstance(x, Ghost) and x.dim():
                raise RuntimeError(
                    f"{func}: expected all tensors on one device, found {DEVICE} and {x.device}"
                )
    device = kwargs.get("device")
    is_result_ghost = bool(ghosts) if device is None else _of(device)
    if func._schema.name == "aten::copy_":
        is_result_ghost = isinstance(args[0], Ghost)
    args, kwargs = tree_map_only(Ghost, lambda x: x.raw, (args, kwargs))
    if _of(device):
        kwargs["device"] = torch.device("cpu")
    with _disable_current_modes():
        out = func(*args, **kwargs)
    ghost_of_raw = {id(x.raw): x for x in ghosts}  # results of in-place operations are the same tensor
    if not is_result_ghost:
        return out
    return tree_map_only(Tensor, lambda t: ghost_of_raw[id(t)] if id(t) in ghost_of_raw else Ghost(t), out)


class _Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return _run(func, args, dict(kwargs or {}))


class _Function(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func in FACTORIES and _of(kwargs.get("device")):
            del kwargs["device"]
            return Ghost(func(*args, **kwargs))
        return func(*args, **kwargs)


@contextmanager
def ghost_device():
    """Context manager with the device, in which modules that move to it keep their tied weights.

    Tensor subclasses cannot be created in inference mode, so it only disables gradients.
    """
    swaps, mode = torch.__future__.get_swap_module_params_on_conversion(), torch.inference_mode
    torch.__future__.set_swap_module_params_on_conversion(True)
    enter, leave = mode.__enter__, mode.__exit__
    mode.__enter__, mode.__exit__ = torch.no_grad.__enter__, torch.no_grad.__exit__
    try:
        with _Dispatch(), _Function():
            yield DEVICE
    finally:
        mode.__enter__, mode.__exit__ = enter, leave
        torch.__future__.set_swap_module_params_on_conversion(swaps)
