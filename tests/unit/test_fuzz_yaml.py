# SPDX-License-Identifier: Apache-2.0
"""Damaged and hostile declarations, through the command line: exit code 0 or 2, one line, nothing executed,
no memory or time without bound."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from coldforge.codegen import catalogue as declarations
from coldforge.codegen.catalogue import BUILTIN_ROOT
from coldforge.codegen.render import INCLUDE_FOLDER
from fuzz import accepted_or_refused, changed, hostile_values, paths_of, profile, refused
from hypothesis import example, given
from hypothesis import strategies as st
from own_family import write_family

FILES = {
    "conv2d/family.yaml": ["render", "conv2d_mish", "--target", "cpu"],
    "conv2d/space.direct.cpu.yaml": ["render", "conv2d_mish", "--target", "cpu"],
    "conv2d/space.direct.cuda.yaml": ["render", "conv2d_mish"],
    "operators/conv2d_divide_leaky_relu.yaml": ["render", "conv2d_divide_leaky_relu", "--target", "cpu"],
    "operators/conv_transpose2d_mean_logsumexp.yaml": ["render", "conv_transpose2d_mean_logsumexp"],
    "conv_transpose2d_mean/family.yaml": ["render", "conv_transpose2d_scale_mean"],
    "conv_transpose2d_mean/space.collapsed.cuda.yaml": ["render", "conv_transpose2d_scale_mean", "--json"],
    "row_norm/family.yaml": ["list"],
    "row_norm/space.yaml": ["list", "--json"],
}
"""File -> a command that reads it."""

SLOW_S = 20.0


class Root:
    """A folder of declarations that a test damages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.whole = {name: (folder / name).read_bytes() for name in FILES}

    def read(self, name: str) -> dict:
        return yaml.safe_load(self.whole[name])

    def attempt(self, name: str, content: bytes) -> None:
        """Runs the command that reads the file, with this content; puts the file back."""
        declarations.catalogue.cache_clear()
        arguments = FILES[name]
        # The list would count the large spaces of the others too.
        place = self.folder / name.split("/")[0] if arguments[0] == "list" else self.folder
        (self.folder / name).write_bytes(content)
        started = time.process_time()
        try:
            accepted_or_refused(*arguments, "--templates", str(place))
        finally:
            (self.folder / name).write_bytes(self.whole[name])
        assert time.process_time() - started < SLOW_S


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Root]:
    """The repository's declarations and a family in short forms, in the place of the built-in ones: reading
    those for each example would take most of the time."""
    folder = tmp_path_factory.mktemp("fuzz")
    empty = folder / "none"
    empty.mkdir()
    for name in ("conv2d", "conv_transpose2d_mean", "operators"):
        ignored = shutil.ignore_patterns("__pycache__", "ledger.*")
        shutil.copytree(BUILTIN_ROOT / name, folder / "templates" / name, ignore=ignored)
    write_family(folder / "templates")
    with pytest.MonkeyPatch.context() as patch:
        assert INCLUDE_FOLDER.is_relative_to(BUILTIN_ROOT)  # which render knows by now
        patch.setattr(declarations, "BUILTIN_ROOT", empty)
        patch.setenv("COLDFORGE_HOME", str(folder / "home"))
        yield Root(folder / "templates")
    declarations.catalogue.cache_clear()


@pytest.mark.parametrize("name", FILES)
def test_undamaged(root: Root, name: str) -> None:
    declarations.catalogue.cache_clear()
    arguments = FILES[name]
    place = root.folder / name.split("/")[0] if arguments[0] == "list" else root.folder
    assert accepted_or_refused(*arguments, "--templates", str(place)).code == 0


@profile(60)
@given(
    name=st.sampled_from(sorted(FILES)),
    place=st.integers(0, 10**6),
    how=st.sampled_from(["replace", "replace", "replace", "drop", "rename"]),
    value=hostile_values,
)
def test_one_place_changed(root: Root, name: str, place: int, how: str, value: object) -> None:
    document = root.read(name)
    paths = paths_of(document)
    damaged = changed(document, paths[place % len(paths)], how, value)
    text = yaml.safe_dump(damaged, allow_unicode=True, sort_keys=False)
    root.attempt(name, text.encode("utf-8", "surrogatepass"))


FRAGMENTS = (
    b"\xff\xfe",
    b"\x00",
    b"\t",
    b"\r",
    b"&a ",
    b"*a",
    b"<<: *a\n",
    b"!!python/object/apply:os.abort []\n",
    b"!!python/name:os.system ",
    b"!!binary aGk=\n",
    b"!!set {a, b}\n",
    b"!!timestamp x\n",
    b"!!int ''\n",
    b"!!float ''\n",
    b"!!bool maybe\n",
    b"!!omap [a: 1]\n",
    b"2001-99-99\n",
    b"? [a, b]\n: 1\n",
    b"--- \n",
    b"...\n",
    b"%YAML 9.9\n---\n",
    b"[" * 5000,
    b"{a: " * 3000,
    b"- " * 2000,
    b'"\\ud800"',
    b'"\\x00"',
    b"|\n",
    b">-\n  x\n",
    b"9" * 5000,
    b"0b\n",
    b"1:30:00\n",
    b"=\n",
    b"~\n",
    b".inf\n",
    b"{",
    b"]",
    b": ",
    b"'",
    b'"',
    b"#",
)


@profile(65)
@given(
    name=st.sampled_from(sorted(FILES)),
    cuts=st.lists(
        st.tuples(
            st.integers(0, 10**6), st.integers(0, 30), st.sampled_from(FRAGMENTS) | st.binary(max_size=4)
        ),
        min_size=1,
        max_size=3,
    ),
)
@example("row_norm/family.yaml", [(0, 10**6, b"")])
@example("row_norm/space.yaml", [(0, 10**6, b"a" * 200_000)])
@example("conv2d/family.yaml", [(0, 10**6, bytes(range(256)) * 10)])
def test_bytes_changed(root: Root, name: str, cuts: list[tuple[int, int, bytes]]) -> None:
    content = root.whole[name]
    for start, length, fragment in cuts:
        start %= len(content) + 1
        content = content[:start] + fragment + content[start + length :]
    root.attempt(name, content)


@profile(30)
@given(
    name=st.sampled_from([n for n in sorted(FILES) if not n.startswith("row_norm")]),
    line=st.integers(0, 10**6),
    fragment=st.sampled_from(FRAGMENTS),
)
def test_a_value_after_a_key(root: Root, name: str, line: int, fragment: bytes) -> None:
    """In the place of a value, where the parser is sure to meet it."""
    lines = root.whole[name].splitlines(keepends=True)
    keyed = [index for index, text in enumerate(lines) if b": " in text and not text.startswith(b"#")]
    index = keyed[line % len(keyed)]
    key = lines[index].split(b": ")[0]
    lines[index] = key + b": " + fragment.rstrip(b"\n") + b"\n"
    root.attempt(name, b"".join(lines))


def _space(root: Root, **changes: str) -> str:
    declarations.catalogue.cache_clear()
    place = write_family(root.folder.parent / "hostile", **changes)
    started = time.process_time()
    said = refused("list", "--templates", str(place))
    assert time.process_time() - started < SLOW_S
    return said


BOMB = "a: &a [1, 2]\nb: &b [*a, *a, *a]\nc: &c [*b, *b, *b]\n"


LAUNCH = "\nlaunch: {units: rows}\n"


def _parameters(values: str, count: int) -> str:
    return "parameters: {" + ", ".join(f"P{i}: {values}" for i in range(count)) + "}" + LAUNCH


def _units(text: str) -> str:
    return "parameters: {A: [1]}\nlaunch: {units: " + text + "}\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (_parameters(str(list(range(1001))), 1), "at most 1000"),
        (_parameters("[1, 2, 3]", 60), "over 10^28 combinations; at most 5,000,000"),
        (_parameters("[1]", 900), "900 parameters; at most 64"),
        (_parameters("[" + "9" * 400 + "]", 1), "not a whole number from"),
        (_units("2 ** (2 ** 40)"), "not part of the expression language"),
        (_units("10 ** 10 ** 10"), "not part of the expression language"),
        (_units("1 << 1000000000"), "not part of the expression language"),
        (_units("9" * 1900), "does not fit in 64 bits"),
        (_units("not " * 400 + "1"), "nested more than 100 deep"),
        (_units("rows" + " + 1" * 300), "nested more than 100 deep"),
        ("parameters: {A: [1, 2]}\ndefault: {A: true}" + LAUNCH, "A=True is none of [1, 2]"),
        ("parameters: {A: [1]}\nfile: " + "a" * 300 + ".cpp.jinja" + LAUNCH, "does not stand"),
        (BOMB, "aliases are not allowed"),
        ("a: &a\n  b: *a\n", "aliases are not allowed"),
        ("parameters: !!python/object/apply:os.abort []\n", "could not determine a constructor"),
        ("parameters: !!bool maybe\n", "'maybe' is no bool"),
        ("parameters: !!int ''\n", "'' is no int"),
        ("parameters: !!timestamp x\n", "'x' is no timestamp"),
        ("[" * 50_000, "nested too deeply"),
        ("x: '" + "a" * 200_000 + "'", "at most 100000"),
    ],
    ids=lambda text: str(text)[:30],
)
def test_a_limit_and_one_line(root: Root, text: str, expected: str) -> None:
    assert expected in _space(root, space_yaml=text)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("x: [rows, columns]", "x: [" + "rows, " * 2000 + "]", "2000 items"),
        ("weight: [columns]", "weight: [" + "columns, " * 9 + "]", "9 axes; at most 8"),
        ("workloads:", "run_time: [[rows]]\nderived: {A: rows}\nworkloads:", "is not a name"),
        ("reference:row_norm", "a" * 300 + ":row_norm", "cannot read"),
    ],
)
def test_a_family_and_one_line(root: Root, old: str, new: str, expected: str) -> None:
    text = root.whole["row_norm/family.yaml"].decode()
    assert old in text
    assert expected in _space(root, family_yaml=text.replace(old, new, 1))


def test_a_scalar_that_no_double_holds(root: Root) -> None:
    name = "operators/conv2d_divide_leaky_relu.yaml"
    path = root.folder / name
    path.write_bytes(root.whole[name].replace(b"divisor: 2.0", b"divisor: " + b"9" * 400))
    declarations.catalogue.cache_clear()
    try:
        assert "expected a number" in refused("list", "--templates", str(root.folder))
    finally:
        path.write_bytes(root.whole[name])


def test_a_space_that_is_too_large_to_enumerate(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    from coldforge.codegen import legal

    rule = "constraints: [{require: %s > 0, reason: never}]\n" % ("A0" + " + A1" * 90)
    text = "parameters: {A0: [1, 2], A1: [1, 2]}\nlaunch: {units: rows}\n"
    place = write_family(root.folder.parent / "large", space_yaml=text + rule)
    arguments = ["list", "--templates", str(place)]
    monkeypatch.setattr(legal, "MAX_LEGAL", 3)
    declarations.catalogue.cache_clear()
    assert "over 3 legal configs; give parameters fewer values" in refused(*arguments)
    monkeypatch.setattr(legal, "MAX_STEPS", 50)
    assert "too large to enumerate" in refused(*arguments)


def test_yaml_runs_nothing(root: Root, tmp_path: Path) -> None:
    """Each way that a text of a declaration might be run leaves no trace of it."""
    mark = tmp_path / "mark"
    code = f"open({str(mark)!r}, 'w')"
    shell = f"touch {mark}"
    texts = [
        f"parameters: !!python/object/apply:os.system ['{shell}']\n",
        f'parameters: !!python/object/new:os.system ["{shell}"]\n',
        f'launch: {{units: "{code}"}}\nparameters: {{A: [1]}}\n',
        'launch: {units: "().__class__.__base__.__subclasses__()"}\nparameters: {A: [1]}\n',
        f'launch: {{units: "[{code} for x in (1,)]"}}\nparameters: {{A: [1]}}\n',
        f'launch: {{units: "(lambda: {code})()"}}\nparameters: {{A: [1]}}\n',
        f'launch: {{units: "(x := {code})"}}\nparameters: {{A: [1]}}\n',
        f"launch: {{units: rows}}\nparameters: {{A: ['{{{{ {code} }}}}']}}\n",
    ]
    for text in texts:
        _space(root, space_yaml=text)
    assert not mark.exists()
