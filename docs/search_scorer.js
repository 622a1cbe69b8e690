// What people type, by the page that answers it. conf.py adds these words to the pages' keywords.
const ANSWERS = {
  "coming_from": "stable baselines3 sb3 cleanrl migrate sac td3 dqn off policy",
  "environments": "lunarlander cartpole mujoco atari box2d minigrid pettingzoo gymnasium list",
  "evaluation": "gif video mp4 record eval evaluate best",
  "export": "onnx pytorch deploy huggingface",
  "gymnasium": "custom environment own gym python tutorial float64",
  "install": "mac wsl windows cuda gpu pip uv conda installation",
  "library": "entropy schedule learning rate annealing save load predict callback python api",
  "machines": "distributed multi gpu nccl slurm",
  "selfplay": "multiagent opponents league",
  "settings": "speed slow fast performance seed reproducible",
  "sweeps": "hyperparameters hyperparameter tune tuning search optuna",
  "tracking": "tensorboard wandb logging logger trackio",
  "training": "resume continue checkpoint stop kill",
  "troubleshooting": "faq troubleshooting docker error problem help bug crash nan learn"
};
const QUERY = new URLSearchParams(window.location.search).get("q") ?? "";
const TYPED = QUERY.toLowerCase().split(/\W+/).filter(Boolean);

function rank(page) {
  const words = (ANSWERS[page] ?? "").split(" ");
  if (TYPED.every((word) => words.includes(word))) return 100;
  if (page.startsWith("decisions/")) return -100;
  return ["reference", "keys", "file_formats", "architecture"].includes(page) ? -10 : 0;
}

// Sphinx's order of what a search finds; pages that answer the query first, then guides.
var Scorer = {
  score: ([page, title, anchor, about, score]) => score + rank(page),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
