"""Workflows and badges name only what is there."""

import re

import pytest
import yaml

from tools.steplib.book import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
READMES = ["README.md", "README.zh.md"]
BADGE = re.compile(r"\[!\[([^\]]+)\]\(([^)]+)\)\]\(([^)]+)\)")


def steps(workflow):
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_what_is_there(path):
    workflow = yaml.safe_load(path.read_text())
    assert workflow["name"] == path.stem
    makefile = (ROOT / "Makefile").read_text()
    for step in steps(workflow):
        run = step.get("run", "")
        for target in re.findall(r"\bmake ([a-z-]+)", run):
            assert re.search(rf"^{target}:.*##", makefile, re.M), target
        for script in re.findall(r"(?:^|\s)(\.ci/\S+)", run):
            assert (ROOT / script).is_file()
        assert run or re.fullmatch(r"actions/[a-z-]+@v\d+", step["uses"])


def test_the_site_is_published_with_its_films():
    workflow = yaml.safe_load(
        (ROOT / ".github" / "workflows" / "publish.yml").read_text()
    )
    text = [step.get("run", step.get("uses")) for step in steps(workflow)]
    order = [
        next(i for i, t in enumerate(text) if part in t)
        for part in ("make videos", "make book", "upload-pages", "deploy-pages")
    ]
    assert order == sorted(order)
    upload = next(s for s in steps(workflow) if "upload" in s.get("uses", ""))
    assert upload["with"]["path"] == "site"
    config = (ROOT / "mkdocs.yml").read_text()
    assert re.search(r"^site_dir: site$", config, re.M)


@pytest.mark.parametrize("name", READMES)
def test_badges_point_to_what_is_there(name):
    text = (ROOT / name).read_text()
    badges = BADGE.findall(text)
    assert len(badges) == text.count("img.shields.io") > 0
    for _, image, target in badges:
        assert image.startswith("https://img.shields.io/badge/")
        assert (ROOT / target).exists()
    project = (ROOT / "pyproject.toml").read_text()
    needed = re.search(r'requires-python = ">=([\d.]+)"', project)[1]
    assert f"/python-{needed}%2B-" in text
    licence = re.search(r'license = "(\w+)"', project)[1]
    assert (ROOT / "LICENSE").read_text().startswith(licence)
    assert f"/licence-{licence}-" in text or f"/许可证-{licence}-" in text
