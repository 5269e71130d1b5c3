"""`make pages`: the tables of docs/ and the parts of the chart that are made from the code."""

from tests.pages import chart
from tests.pages.reference import configuration, metrics, troubleshooting

if __name__ == "__main__":
    for each in (configuration, metrics, troubleshooting, chart):
        each.main()
