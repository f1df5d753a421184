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


@pytest.mark.parametrize("page", PAGES)
def test_snippets(page, capsys):
    names = {}
    # Programs of several processes are run by torch_ring_packages_test.py.
    of_one = [snippet for snippet in snippets(page) if "init_process_group" not in snippet]
    has_torch, has_transformers = (importlib.util.find_spec(name) is not None for name in ("torch", "transformers"))
    runnable = [
        snippet
        for snippet in of_one
        if (has_torch or not OF_TORCH.search(snippet)) and (has_transformers or "transformers" not in snippet)
    ]
    if not runnable:
        pytest.skip("torch or transformers is not installed, and every snippet of the page needs it")
    for snippet in runnable:
        exec(compile(snippet, f"<{page}>", "exec"), names)
    printed = capsys.readouterr().out
    for output in re.findall(
        r"^```python\n(?:(?!```).)*^```\n\n```text\n(.*?)^```$", (ROOT / page).read_text(), re.M | re.S
    ):
        assert output in printed
    for said in re.findall(r"print\(error\)  # (.*)", "".join(snippets(page))):
        assert said in printed
