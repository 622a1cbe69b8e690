// Sphinx's order of what a search finds, but for decisions: guides come first.
var Scorer = {
  score: ([page, title, anchor, about, score]) =>
    score - (page.startsWith("decisions/") ? 100 : 0),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
