"""Instruction sets: what is offered can be chosen, and none leaks into code that an older machine runs."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

from octavo import _native

KNOWN = ["avx512_bf16", "avx512", "avx2", "generic"]
NATIVE = Path(__file__).parents[2] / "native"
SOURCE_FLAGS = {
    "generic": "",
    "avx2": "-mavx2 -mfma -mf16c",
    "avx512": "-mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c",
    "avx512_bf16": "-mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c -mavx512bf16 -mavx512vnni",
}
x86_only = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="only x86 builds have more than the generic kernels"
)


def test_supported_instruction_sets_are_known_best_first_and_end_in_generic():
    offered = _native.supported_isas()
    assert offered == [name for name in KNOWN if name in offered]
    assert offered[-1] == "generic"


def test_each_offered_instruction_set_can_be_chosen(native, isa):
    assert native.model_of(native.Shape(), isa).isa == isa


def test_an_instruction_set_that_is_not_offered_is_refused(native):
    for name in {*KNOWN, "neon", "AVX2", ""} - {*_native.supported_isas()}:
        with pytest.raises(ValueError, match=r"^isa is"):
            native.model_of(native.Shape(), name)


@x86_only
def test_offered_instruction_sets_are_those_of_the_processor():
    flags = set(re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.M)[1].split())
    needs = {"avx2": {"avx2", "fma"}}
    needs["avx512"] = needs["avx2"] | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
    needs["avx512_bf16"] = needs["avx512"] | {"avx512_bf16"}
    assert set(_native.supported_isas()) == {"generic", *(name for name in needs if needs[name] <= flags)}


# The module, disassembled ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wide_instructions():
    """For each function of the built module, the kinds of instruction in it that not every x86-64 machine has."""
    if shutil.which("objdump") is None:
        pytest.skip("objdump (binutils) is not installed: it is what reads the module's instructions")
    command = ["objdump", "--disassemble", "--no-show-raw-insn", "--wide", _native.__file__]
    found = defaultdict(set)
    function = ""
    for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
        if header := re.match(r"[0-9a-f]+ <(.+)>:$", line):
            function = header[1]
            found[function]  # named even if it holds none
        elif "\t" in line:
            found[function] |= kinds_of(line.split("\t", 1)[1])
    return found


def kinds_of(instruction):
    """Which of vex, ymm, zmm, mask, fma and bf16 an instruction is, as objdump writes it."""
    mnemonic, _, operands = instruction.split("#")[0].strip().partition(" ")
    kinds = set()
    if mnemonic.startswith("v") and mnemonic not in ("verr", "verw"):
        kinds.add("vex")
    kinds |= {kind for kind in ("ymm", "zmm") if f"%{kind}" in operands}
    if re.search(r"%k[0-7]", operands):
        kinds.add("mask")
    if re.match(r"vf(n?m)(add|sub)", mnemonic):
        kinds.add("fma")
    if mnemonic.startswith(("vdpbf16", "vcvtne")):
        kinds.add("bf16")
    return kinds


def home_of(function):
    """The instruction set whose namespace a mangled name lies in, if any."""
    found = re.match(r"_ZN6octavo(?:4(avx2)|6(avx512)|11(avx512_bf16)|7(generic))[0-9_N]", function)
    return next((name for name in found.groups() if name), None) if found else None


MAY_HOLD = {
    None: set(),
    "generic": set(),
    "avx2": {"vex", "ymm", "fma"},
    "avx512": {"vex", "ymm", "zmm", "mask", "fma"},
    "avx512_bf16": {"vex", "ymm", "zmm", "mask", "fma", "bf16"},
}


@x86_only
def test_the_disassembly_shows_every_instruction_set_in_its_own_namespace(wide_instructions):
    """That the next test sees what it looks for: each set's own instructions, under names that tell whose they are."""
    seen = defaultdict(set)
    for function, kinds in wide_instructions.items():
        seen[home_of(function)] |= kinds
    assert seen["avx2"] >= {"vex", "ymm", "fma"}
    assert seen["avx512"] >= {"vex", "zmm", "fma"}
    assert seen["avx512_bf16"] >= {"vex", "zmm", "bf16"}
    assert "generic" in seen
    assert len(wide_instructions) > 200, "the module was stripped; the build must keep its symbols"


@x86_only
def test_no_wide_instruction_lies_outside_its_instruction_sets_own_code(wide_instructions):
    """An inline std function compiled for AVX-512 and linked for everybody would crash an older machine here."""
    strays = {f: kinds - MAY_HOLD[home_of(f)] for f, kinds in wide_instructions.items()}
    assert {f: kinds for f, kinds in strays.items() if kinds} == {}


@x86_only
@pytest.mark.parametrize("unit", SOURCE_FLAGS)
def test_a_unit_of_one_instruction_set_defines_nothing_that_others_could_be_linked_to(tmp_path, unit):
    """Without optimisation every inline function that is called is emitted: no weak symbol may be among them."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None or shutil.which("nm") is None:
        pytest.skip("no C++ compiler and nm here: the built module alone does not show what each unit emitted")
    target = tmp_path / "unit.o"
    command = [
        compiler,
        "-std=c++20",
        "-O0",
        "-w",
        "-fno-exceptions",
        f"-I{NATIVE}",
        "-DOCTAVO_X86",
        *SOURCE_FLAGS[unit].split(),
    ]
    subprocess.run([*command, "-c", str(NATIVE / "isa" / f"{unit}.cpp"), "-o", str(target)], check=True)
    listing = subprocess.run(["nm", str(target)], capture_output=True, text=True, check=True).stdout
    symbols = [line.split() for line in listing.splitlines()]
    shared = {name for *_, kind, name in symbols if kind.isupper() and kind != "U"}
    assert {home_of(name) for name in shared} == {unit}
    assert all("kernels" in name for name in shared), "only the table of kernels is for others"
    wanted = {name for *_, kind, name in symbols if kind == "U"}
    assert wanted <= {"memcpy", "memset", "sqrtf", "_GLOBAL_OFFSET_TABLE_", "__stack_chk_fail"}
