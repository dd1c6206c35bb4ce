"""Launch lists: what the native call tells a driver, by a driver that only listens."""

from __future__ import annotations

import ctypes
import struct
from threading import Thread
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fewbit import _native
from fewbit.errors import ArgumentError
from fewbit.ops.cuda.kernels import Entry
from fewbit.ops.cuda.launch import GEMM, LAUNCH, LaunchList, StepPointer, launch_all
from fewbit.ops.cuda.steps import MAX_LISTS, StepLists, rounded
from fewbit.ops.cuda.values import GroupTables, Launcher, StepInputs

from .emulator.device import GemmEx, LaunchKernel, address_of


class Driver:
    """Keeps what it is given, and refuses the kernel 13."""

    def __init__(self) -> None:
        self.launched: list[tuple[Any, ...]] = []
        self.products: list[tuple[Any, ...]] = []
        self._functions = LaunchKernel(self._launch), GemmEx(self._multiply)
        self.addresses = (*map(address_of, self._functions), 99)

    def _launch(self, config: Any, kernel: int, parameters: Any, extra: Any) -> int:
        assert not parameters
        assert (extra[0], extra[2], extra[4]) == (1, 2, None)
        one = config[0]
        attribute = ctypes.string_at(one.attributes, 12) if one.num_attributes else None
        given = ctypes.string_at(extra[1], ctypes.c_size_t.from_address(extra[3]).value)
        sizes = (*one.grid, *one.block, one.shared_bytes, one.stream)
        self.launched.append((kernel, sizes, attribute, given))
        return 700 if kernel == 13 else 0

    def _multiply(self, *args: Any) -> int:
        scales = [ctypes.c_float.from_address(args[i]).value for i in (6, 13)]
        self.products.append((*args[:6], scales[0], *args[7:13], scales[1], *args[14:]))
        return 0


@pytest.fixture
def driver() -> Driver:
    return Driver()


def test_parameters_lie_as_in_a_kernel(driver: Driver) -> None:
    launches = LaunchList()
    args = (1 << 40, -3, 7, 0.5, True)
    launches.add(Entry("first", "", "", "QiQfi", shared=1024), 77, (3, 4), 128, True, args)
    launches.add(Entry("second", "", ""), 78, 6, 32, False, ())
    assert launch_all(launches, driver.addresses, 5, 0, 2) is None
    (kernel, sizes, attribute, given), second = driver.launched
    assert (kernel, sizes) == (77, (3, 4, 1, 128, 1, 1, 1024, 5))
    assert given == struct.pack("<Qi4xQfi", *args)
    assert attribute == struct.pack("<ixxxxi", 6, 1)  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    assert second == (78, (6, 1, 1, 32, 1, 1, 0, 5), None, b"")


def test_products_are_those_of_cublas(driver: Driver) -> None:
    launches = LaunchList()
    launches.add_product(11, 12, 13, 4, 5, 6, 14, 8, 9, 0.5)
    assert launch_all(launches, driver.addresses, 0, 0, 1) is None
    transposed, normal, f32, compute, default = 1, 0, 0, 68, -1
    assert driver.products == [
        (99, transposed, normal, 5, 4, 6, 1.0, 12, 14, 6, 11, 14, 8, 0.5, 13, f32, 9, compute, default)
    ]


def test_a_kernel_that_fails_is_named_and_ends_the_list(driver: Driver) -> None:
    launches = LaunchList()
    for kernel in (1, 13, 2):
        launches.add(Entry(f"kernel_{kernel}", "", "", "Q"), kernel, 1, 32, False, (kernel,))
    assert launch_all(launches, driver.addresses, 0, 0, 3) == ("kernel_13", 700)
    assert [kernel for kernel, *_ in driver.launched] == [1, 13]
    assert launch_all(launches, driver.addresses, 0, 2, 3) is None  # a part of the list


def test_threads_launch_lists_of_their_own(driver: Driver) -> None:
    def many(value: int) -> None:
        launches = LaunchList()
        launches.add(Entry("one", "", "", "Qi"), value, 1, 32, False, (value, value))
        for _ in range(200):
            launch_all(launches, driver.addresses, 0, 0, 1)

    threads = [Thread(target=many, args=(value,)) for value in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(driver.launched) == 800
    assert all(given[:8] == struct.pack("<Q", kernel) for kernel, *_, given in driver.launched)


def launch(**changes: int) -> Any:
    fields = {"kernel": 1, "x": 1, "y": 1, "z": 1, "threads": 32, "shared": 0, "dependent": 0, "first": 0, "bytes": 8}
    return np.frombuffer(LAUNCH.pack(*(fields | changes).values()), np.uint8)


@pytest.mark.parametrize(
    ("launches", "addresses", "end", "message"),
    [
        (launch(bytes=17), (1, 1), 1, "end of a launch's parameters: got 17, expected 16"),
        (launch(first=1 << 31, bytes=1 << 31), (1, 1), 1, "got 4294967296, expected 16"),
        (launch(), (1, 1), 2, "end of the launches: got 2, expected 1"),
        (launch()[:-1], (1, 1), 0, "bytes of launches: got 39, expected 0"),
        (launch(y=0), (1, 1), 1, "no blocks or no threads"),
        (launch(threads=0), (1, 1), 1, "no blocks or no threads"),
        (launch(), (0, 1), 1, "needs the address of cuLaunchKernelEx"),
        (launch(kernel=0), (1, 1), 1, f"bytes of a product: got 8, expected {GEMM.size}"),
    ],
)
def test_lists_are_checked_before_anything_is_launched(
    launches: Any, addresses: tuple[int, int], end: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        _native.launch_all(*addresses, 0, 0, launches, np.zeros(16, np.uint8), 0, end)


def test_products_need_cublas() -> None:
    launches = LaunchList()
    launches.add_product(*(1,) * 9, 0.0)
    with pytest.raises(ValueError, match="needs the address of cublasGemmEx"):
        launch_all(launches, (1, 0, 0), 0, 0, 1)


def test_what_is_no_parameter_is_refused() -> None:
    entry = Entry("kernel_a", "", "", "Qi")
    for args in ((1,), (1, 2, 3), ("1", 2), (1, 0.5), (1, 1 << 40)):
        with pytest.raises(ArgumentError, match="kernel_a takes other arguments"):
            LaunchList().add(entry, 1, 1, 32, False, args)
    with pytest.raises(TypeError, match="passed to kernels as it is"):
        StepPointer(1, 0) + 4


class Listener:
    """A session of the driver, with one kernel a step that reads two of its inputs."""

    has_dependent_launches, generation = True, 0
    stream = SimpleNamespace(handle=0)

    def __init__(self, driver: Driver) -> None:
        self.driver, self.recorded = driver, 0

    def add(self, launches: LaunchList, entry: Entry, grid: Any, threads: int, args: Any, dependent: bool) -> None:
        launches.add(entry, 1, grid, threads, dependent, args)

    def launch_list(self, launches: LaunchList, stream: Any, begin: int = 0) -> None:
        assert launch_all(launches, self.driver.addresses, 0, begin, len(launches)) is None

    def each(self, run: Launcher, step: StepInputs) -> None:
        self.recorded += 1
        for _ in range(40):  # more than are sent at once
            args = step.num_tokens, step.tokens, step.groups[0].slots, 77
            run.launch(Entry("kernel", "", "", "iQQQ"), step.num_tokens, 32, *args)


@pytest.fixture
def session(driver: Driver) -> Any:
    return Listener(driver)


def step_at(pointer: int, tokens: int = 3, max_length: int = 100) -> StepInputs:
    places = [pointer + 8 * i for i in range(12)]
    return StepInputs(*places[:9], (GroupTables(*places[9:]),), tokens, 1, 1, tokens, max_length)


def test_steps_of_one_size_are_recorded_once_and_patched(session: Any, driver: Driver) -> None:
    lists, run = StepLists(), Launcher(session, session.stream)
    for pointer in (1 << 20, 1 << 30, 1 << 20):
        driver.launched.clear()
        lists.launch(run, step_at(pointer), session.each)
        assert {given for *_, given in driver.launched} == {struct.pack("<i4xQQQ", 3, pointer, pointer + 88, 77)}
        assert [attribute is not None for _, _, attribute, _ in driver.launched] == [False] + [True] * 39
    assert session.recorded == 1
    lists.launch(run, step_at(0, max_length=99), session.each)  # rounded to the same
    assert session.recorded == 1
    lists.launch(run, step_at(0, tokens=4), session.each)
    assert session.recorded == 2
    session.generation += 1  # scratch memory has moved
    lists.launch(run, step_at(0), session.each)
    assert session.recorded == 3


def test_the_oldest_list_makes_room(session: Any) -> None:
    lists, run = StepLists(), Launcher(session, session.stream)
    for tokens in [*range(1, MAX_LISTS + 1), 1, MAX_LISTS + 1, 1]:
        lists.launch(run, step_at(0, tokens), session.each)
    assert session.recorded == MAX_LISTS + 1
    assert len(lists.kept) == MAX_LISTS
    lists.launch(run, step_at(0, 2), session.each)
    assert session.recorded == MAX_LISTS + 2


def test_lengths_are_rounded_by_an_eighth_at_most() -> None:
    lengths = range(1, 5000)
    assert all(n <= rounded(n) <= n + n // 8 for n in lengths)
    assert len(set(map(rounded, lengths))) < 100
