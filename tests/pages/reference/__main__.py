"""`make pages`: the tables of docs/ that are made from the code."""

from tests.pages.reference import configuration, metrics, troubleshooting

if __name__ == "__main__":
    for each in (configuration, metrics, troubleshooting):
        each.main()
