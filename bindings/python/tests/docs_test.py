"""The snippets of docs' pages and of README's Python section run as they stand; torch's where it is."""

import importlib.util
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[3]


def snippets(page):
    path = ROOT / page
    if not path.is_file():
        pytest.skip(f"{page} is not beside the tests")
    source = path.read_text()
    found = list(re.finditer(r"^```python\n(.*?)^```$", source, re.M | re.S))
    assert found, f"{page} has no Python snippets"
    # Blank lines before each keep the page's line numbers in a traceback.
    return [("\n" * source.count("\n", 0, match.start(1)) + match[1]) for match in found]


PAGES = [
    "README.md",
    *(
        f"docs/{name}.md"
        for name in (
            "README",
            "python",
            "linear",
            "sparse",
            "ranges",
            "masks",
            "score_mod",
            "training",
            "transformers",
            "serving",
            "from_flash_attn",
            "from_flashinfer",
            "from_sdpa",
        )
    ),
]
OF_TORCH = re.compile(r"import torch|torch\.|tessella\.dropin|flash_attn|transformers")


def lacking_words():
    """What pages and snippets say that need what is not installed."""
    if importlib.util.find_spec("torch") is None:
        return OF_TORCH
    import torch

    words = [] if importlib.util.find_spec("transformers") else ["transformers"]
    if "enable_gqa" not in (torch.nn.functional.scaled_dot_product_attention.__doc__ or ""):  # torch 2.4
        words.append("enable_gqa")
    return re.compile("|".join(words) or r"(?!)")


@pytest.mark.parametrize("page", PAGES)
def test_snippets(page, capsys):
    names = {}
    # Programs of several processes are run by torch_ring_packages_test.py.
    of_one = [snippet for snippet in snippets(page) if "init_process_group" not in snippet]
    lacking = lacking_words()
    runnable = [snippet for snippet in of_one if not lacking.search(f"{page} {snippet}")]
    if not runnable:
        pytest.skip("every snippet of the page needs torch, a newer torch or transformers")
    for snippet in runnable:
        exec(compile(snippet, f"<{page}>", "exec"), names)
    printed = capsys.readouterr().out
    for output in re.findall(
        r"^```python\n(?:(?!```).)*^```\n\n```text\n(.*?)^```$", (ROOT / page).read_text(), re.M | re.S
    ):
        assert output in printed
    for said in re.findall(r"print\(error\)  # (.*)", "".join(snippets(page))):
        assert said in printed
