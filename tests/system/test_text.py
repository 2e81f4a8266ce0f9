"""Numbers, lists, rows and errors as text."""

import csv
import errno
import io
import os

import pytest

from vitft.system.text import (
    closest_names,
    count,
    csv_line,
    days_and_hours,
    describe_os_error,
    distinct_names,
    duration,
    duration_fix,
    escape_formula,
    format_size,
    interval,
    is_measurable,
    is_scaled,
    json_line,
    listing,
    parse_duration,
    percent,
    percent_or_bound,
    points,
    shell_join,
    shell_quote,
    shortened,
    whole_percent,
)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["a"], "a"),
        (["a", "b"], "a and b"),
        (list("abcdefg"), "a, b, c, d, e, f and g"),
        (list("abcdefgh"), "a, b, c, d, e, f and 2 more"),
    ],
)
def test_long_lists_are_cut_short(names: list[str], text: str) -> None:
    assert listing(names) == text


@pytest.mark.parametrize(
    ("probability", "text"),
    [
        (0.934, "93%"),
        (0.004, "< 1%"),
        (0.006, "1%"),
        (0.994, "99%"),
        (0.996, "> 99%"),
        (0.999, "> 99%"),
        (0.0, "< 1%"),
        (1.0, "> 99%"),
        (None, "–"),
    ],
)
def test_probabilities_are_never_rounded_to_certainty(probability: float | None, text: str) -> None:
    assert whole_percent(probability) == text


@pytest.mark.parametrize("name", ["=1+1", "+x", "-x", "@x", "\tx", "\rx"])
def test_a_formula_is_escaped(name: str) -> None:
    (row,) = csv.reader(io.StringIO(csv_line([name, "-0.5", "plain, or not"]), newline=""))

    assert row == [f"'{name}", "-0.5", "plain, or not"]


@pytest.mark.parametrize(
    ("text", "seconds", "fix"),
    [
        ("90s", 90, ""),
        (" 2m ", 120, ""),
        ("0s", 0, ""),
        ("1.5h", 5400, ""),
        (" 3", None, "3m for minutes, or e.g. 90s or 2h"),
        ("0.5", None, "0.5m for minutes, or e.g. 90s or 2h"),
        ("0", None, "e.g. 90s, 10m or 2h"),
        ("soon", None, "e.g. 90s, 10m or 2h"),
    ],
)
def test_a_duration_needs_a_unit(text: str, seconds: float | None, fix: str) -> None:
    assert parse_duration(text) == seconds
    assert not fix or duration_fix(text) == fix


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (40, "40 s"),
        (89.6, "90 s"),
        (90, "2 min"),
        (700, "12 min"),
        (5399, "90 min"),
        (5400, "1.5 h"),
        (9000, "2.5 h"),
    ],
)
def test_a_duration_has_a_suitable_unit(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (PermissionError(errno.EACCES, "Permission denied"), "permission denied"),
        (OSError("Unusable"), "unusable"),
        (OSError(0, "SSL handshake failed"), "SSL handshake failed"),
        (OSError(0, "No NFS server"), "no NFS server"),
        (OSError(0, "DoS attack"), "doS attack"),
        (OSError(), "unknown error"),
    ],
)
def test_an_error_of_the_system_reads_as_part_of_a_sentence(error: OSError, text: str) -> None:
    assert describe_os_error(error) == text


@pytest.mark.skipif(os.name == "nt", reason="other quotes on Windows")
@pytest.mark.parametrize(
    ("word", "quoted"),
    [
        ("photos", "photos"),
        ("Meine Bl\u00fcten", "'Meine Bl\u00fcten'"),
        ("-new", "./-new"),
        ("-new photos", "'./-new photos'"),
        ("--fixes", "--fixes"),
        ("-v", "-v"),
    ],
)
def test_a_suggested_word_can_be_pasted(word: str, quoted: str) -> None:
    assert shell_quote(word) == quoted


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 minutes"),
        (59, "0 minutes"),
        (60, "1 minute"),
        (7199, "119 minutes"),
        (7200, "2 hours"),
        (10799, "2 hours"),
        (172799, "47 hours"),
        (172800, "2 days"),
        (12.9 * 86400, "12 days"),
    ],
)
def test_an_age_is_rounded_down_to_at_least_two_of_a_unit(seconds: float, text: str) -> None:
    assert days_and_hours(seconds) == text


def test_fractions_are_percentages() -> None:
    assert (percent(0.9463), percent(1), percent(0.5, 0), percent(None)) == (
        *("94.6%", "100.0%", "50%", "\N{EN DASH}"),
    )
    assert interval((0.91, 0.968)) == "91.0 to 96.8%"
    assert interval((0.91, 0.968), 0) == "91 to 97%"
    assert interval(None) == interval(()) == ""
    assert (points(0.0214), points(-0.1), points(0)) == (
        *("+2.1 points", "\N{MINUS SIGN}10.0 points", "+0.0 points"),
    )


@pytest.mark.parametrize(
    ("fraction", "text"),
    [(0.0, "< 3.0%"), (0.00049, "< 3.0%"), (0.0005, "0.1%"), (0.02, "2.0%")],
)
def test_a_fraction_that_rounds_to_zero_is_stated_as_a_bound(fraction: float, text: str) -> None:
    assert percent_or_bound(fraction, (0.0, 0.03)) == text
    assert is_measurable(fraction) == (not text.startswith("<"))


@pytest.mark.parametrize(
    ("temperature", "scaled"),
    [(None, True), (1.0, False), (1.004, False), (0.996, False), (1.006, True), (0.99, True)],
)
def test_a_temperature_shown_as_one_is_none(temperature: float | None, scaled: bool) -> None:
    assert is_scaled(temperature) is scaled


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 images"), (1, "1 image"), (2, "2 images"), (1200, "1,200 images")],
)
def test_numbers_have_their_noun(number: int, text: str) -> None:
    assert count(number, "image") == text
    assert count(number, "class", "classes").endswith("class" if number == 1 else "classes")


def test_a_list_may_have_another_length() -> None:
    assert listing("abcd", 2) == "a, b and 2 more"
    assert listing("abc", 2) == "a, b and c"
    assert listing((str(i) for i in range(2000)), 1) == "0 and 1,999 more"


def test_names_that_occur_twice_get_a_mark() -> None:
    assert distinct_names(["a", "b", "a"], ["x/a", "x/b", "y/a"]) == ("a (x/a)", "b", "a (y/a)")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        pytest.param("base", ["base_16", "base_32_large", "vit_base"], id="beginning first"),
        pytest.param("BASE_3", ["base_32_large"], id="case does not matter"),
        pytest.param("vit_bsae", ["vit_base"], id="few different characters"),
    ],
)
def test_the_names_that_were_probably_meant_come_first(name: str, found: list[str]) -> None:
    known = ["vit_base", "base_32_large", "base_16", "tiny"]

    assert closest_names(name, known)[: len(found)] == found


def test_of_similar_names_only_the_first_few_are_returned_once_each() -> None:
    known = [f"name{i}" for i in range(9)] * 2

    assert closest_names("name", known) == [f"name{i}" for i in range(5)]
    assert closest_names("name", known, most=2) == ["name0", "name1"]
    assert len(closest_names("zz", known, most=20)) == 9
    assert closest_names("am", ["am", "beam", "examination"], most=1) == ["am"]


def test_names_that_contain_at_least_three_letters_come_before_similar_ones() -> None:
    assert closest_names("ada", ["adx", "imagenet_ada"]) == ["imagenet_ada", "adx"]
    assert closest_names("ad", ["ax", "imagenet_ad"]) == ["ax", "imagenet_ad"]


@pytest.mark.parametrize(
    ("most", "text"), [(5, "abcde"), (4, "abc\N{HORIZONTAL ELLIPSIS}"), (6, "abcde")]
)
def test_a_long_text_is_cut_with_a_mark(most: int, text: str) -> None:
    assert shortened("abcde", most) == text


def test_json_is_strict_and_in_ascii() -> None:
    assert json_line({"a": "\u00e4", "b": [1.5]}) == '{"a": "\\u00e4", "b": [1.5]}'
    with pytest.raises(ValueError, match="Out of range float"):
        json_line({"a": float("nan")})


@pytest.mark.parametrize(
    ("cell", "escaped"),
    [("-1e3", "-1e3"), ("+5", "+5"), ("-5%", "'-5%"), ("a=b", "a=b"), ("", ""), ("=5", "'=5")],
)
def test_numbers_are_not_formulas(cell: str, escaped: str) -> None:
    assert escape_formula(cell) == escaped


def test_only_the_line_break_of_the_row_is_removed() -> None:
    assert csv_line(["a", "b\r\n"]) == 'a,"b\r\n"'
    assert csv_line([1, 0.5, None]) == "1,0.5,None"


def test_a_square_has_one_size() -> None:
    assert (format_size((224, 224)), format_size((224, 192))) == ("224", "224x192")


@pytest.mark.skipif(os.name == "nt", reason="other quotes on Windows")
def test_the_words_of_a_command_are_quoted_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shell_join(["vitft", "a b", "--out", "-x"]) == "vitft 'a b' --out -x"
    monkeypatch.setattr("vitft.system.text.os.name", "nt")
    words = ["vitft", r"C:\my photos", r"C:\photos", "", "50%"]
    assert shell_join(words) == r'vitft "C:\my photos" C:\photos "" "50%"'
