"""The page of a comparison: one document, nothing from outside, everything escaped."""

import re

from compared_runs import make_run, three_runs

from qatline.pipelines.comparison.page import render_comparison


def test_page_shows_results_settings_plans_and_curves() -> None:
    page = render_comparison(three_runs(), source="experiment nightly")
    assert "experiment nightly" in page
    assert re.search(r'<td class="n good">82.00%</td>', page)
    assert page.count('class="n good"') == 1
    assert "<code>qat.epochs</code>" in page
    assert "<code>seed</code>" not in page
    # Values of settings are lines, as columns would be a few characters wide on a phone.
    assert re.search(r'<dd><span class="swatch c1"></span>2: <span class="value">1</span>', page)
    heads = re.findall(r'<th scope="col" class="n">.*?</span>(.*?)</th>', page)
    assert heads == ["1", "2", "3"]
    assert "~ q: num_bits: 8 -&gt; 4" in page
    assert "The same quantizers." in page
    assert page.count("<figure>") == 3


def test_page_escapes_names_and_loads_nothing() -> None:
    page = render_comparison(three_runs(), source="<script>alert(1)</script>")
    assert "<high>" not in page
    assert "<script>alert" not in page
    assert not re.search(r'(src|href)="https?:', page)


def test_page_of_a_bare_run_says_what_is_missing() -> None:
    bare = make_run("bare", 0.5, 1.0).__class__(name="bare", mlflow_id="1")
    page = render_comparison([bare], source="x")
    for sentence in (
        "None of the runs has measured engines.",
        "All settings are the same.",
        "None of the runs has a plan.",
        "No curves",
    ):
        assert sentence in page
