"""What is written of a run."""

from bench import report
from bench.figures import Row


def test_a_part_that_is_measured_again_leaves_the_others_as_they_stand(tmp_path):
    document = tmp_path / "benchmarks.md"

    def part(name: str, figure: str) -> report.Part:
        return report.Part(name, name.upper(), "a machine", 0.1, 0.2, [Row("cost", figure)], ["A note.", "Another."])

    names = ["one", "two", "three"]
    for each in names:
        part(each, "1 ns").save(tmp_path)
    report.write(tmp_path, names, document)
    whole = document.read_text()
    # Another machine has results of one part only.
    here = tmp_path / "here"
    here.mkdir()
    part("two", "2 ns").save(here)
    report.write(here, names, document)
    assert document.read_text() == whole.replace(part("two", "1 ns").text(), part("two", "2 ns").text()) != whole
