-- per pipeline: the last load, how long ago it was, and the newest event it knows of
WITH newest_facts AS (
    SELECT
        ledger.pipeline,
        MAX(fact.ordered_at) AS newest_order,
        MAX(fact.paid_at) AS newest_payment
    FROM fact_order AS fact
    JOIN load_ledger AS ledger ON ledger.load_id = fact.load_id
    GROUP BY ledger.pipeline
),

last_loads AS (
    SELECT
        pipeline,
        MAX(batch_id) AS last_batch_id,
        MAX(loaded_at) AS loaded_at
    FROM load_ledger
    GROUP BY pipeline
)

SELECT
    last_loads.pipeline,
    last_loads.last_batch_id,
    last_loads.loaded_at,
    CAST(
        EXTRACT(EPOCH FROM CURRENT_TIMESTAMP) - EXTRACT(EPOCH FROM last_loads.loaded_at) AS NUMERIC(18, 1)
    ) AS seconds_ago,
    newest_facts.newest_order,
    newest_facts.newest_payment
FROM last_loads
LEFT JOIN newest_facts ON newest_facts.pipeline = last_loads.pipeline
ORDER BY last_loads.pipeline;
