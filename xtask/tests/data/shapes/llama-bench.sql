CREATE TABLE IF NOT EXISTS llama_bench (build_commit TEXT, n_prompt INTEGER, n_gen INTEGER, avg_ts REAL);
INSERT INTO llama_bench (build_commit, model_type, n_prompt, n_gen, avg_ts, stddev_ts) VALUES ('abc', 'qwen3 32B', '512', '0', '1000.0', '2.0');
INSERT INTO llama_bench (build_commit, model_type, n_prompt, n_gen, avg_ts, stddev_ts) VALUES ('abc', 'qwen3 32B', '0', '128', '36.44', '0.1');
